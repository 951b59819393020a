"""What the log says of a run at one moment, as one value and as JSON: for `logio status`, task logs and the page."""
