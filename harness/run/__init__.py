"""One evaluation: plan, producing and prefetching of samples, the pass over the cells, progress, signals."""
