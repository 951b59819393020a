"""Parts that stand beside the product: nothing else is built on them."""
