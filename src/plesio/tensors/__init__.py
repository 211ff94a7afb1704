"""Tensors in flat buffers, and the arithmetic of folds and corrections on them."""
