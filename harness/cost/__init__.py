"""What a run takes: memory on each device, and time. One model of cost for the plan, the time left and the budget."""
