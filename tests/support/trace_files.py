"""Small traces in the forms of the public ones.

They are made up, numbers and dates too; no row of a public trace is in this repository.
"""

import json

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2031-03-09 07:59:58.2500000,512,40
2031-03-09 08:00:01.0000010,60,300
2031-03-09 08:00:01.5000000,1234,7
2031-03-09 08:00:03.7500000,60,21
"""
AZURE_2024 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2032-07-04 23:59:59.500000+00:00,700,9
2032-07-05 00:00:00+00:00,80,1
2032-07-05 00:00:00.031250+00:00,3000,33
"""
PLAIN = """\
arrival_s,prompt_tokens,output_tokens
10,100,20
10.5,200,30
12,300,1
"""


def mooncake(*rows):
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    return "".join(json.dumps(dict(zip(keys, (*row, hash_ids(row[1])), strict=True))) + "\n" for row in rows)


def hash_ids(prompt):
    """Of a prompt that begins like all others."""
    return list(range(-(-int(prompt) // 512))) if isinstance(prompt, int | float) else [0, 1, 2]


MOONCAKE = mooncake((0, 9000, 50), (0, 120, 700), (2998, 4321, 3), (6001, 80, 250))


HEAD = "arrival_s,prompt_tokens,output_tokens\n"
GOOD = "1,10,10\n"


def parquet(path, **columns):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path)
    return path


def same(workload, arrival_s, prompt_tokens, output_tokens):
    assert workload.arrival_s.tolist() == arrival_s
    assert workload.prompt_tokens.tolist() == prompt_tokens
    assert workload.output_tokens.tolist() == output_tokens
