"""One model of plots and tables, and what draws them."""
