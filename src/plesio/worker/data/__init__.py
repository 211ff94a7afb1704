"""What a DataLoader is made of: its order of batches, and the batches."""
