"""What plesio's wheel has at plesio/sparse.py. plesio-sparse brings the folder plesio/sparse/, which Python takes before it."""

raise ModuleNotFoundError(
    "plesio.sparse is in plesio-sparse, which is not installed beside plesio: pip install plesio-sparse",
    name="plesio.sparse",
)
