"""The worker's side: what the training function is given, and what happens at its optimizer's steps."""
