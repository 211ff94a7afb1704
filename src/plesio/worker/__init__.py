"""The worker's side: what the training function gets, and what its optimizer's steps do."""
