"""The live page: reads what runs write into their folders (`plesio.observe.record`) and shows it in a browser."""
