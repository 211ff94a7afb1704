"""Sums that nobody can look into: what sites and their head say to each other so that the head learns the sum of what they sent,
and nothing else (Bonawitz et al. 2017, CCS, "Practical Secure Aggregation for Privacy-Preserving Machine Learning").

It knows no run. `Site` (`plesio.secure_sums.site`) and `SecureHead` (`plesio.secure_sums.head`) are state machines of one round
after another: words in, words out. Who moves them between hosts is `plesio.worker.exchanges.secure` and
`plesio.memory.masked_sums`.
"""
