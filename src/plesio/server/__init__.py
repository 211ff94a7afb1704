"""The server's side: what workers say is decided, folded, counted and kept."""
