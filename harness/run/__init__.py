"""One evaluation: plan, producing and prefetching samples, running the cells, progress, signals."""
