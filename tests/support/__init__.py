"""What several tests share: training functions that worker processes can import, and looks at the process table."""
