"""vLLM's prefix cache in plain Python, a block at a time: what is found again, and what is forgotten.

*Content* of a full block: its tokens and the content of the block before. Answers count like prompts. A text is the
same tokens wherever it occurs.

*Registration*, when tokens are scheduled: once a request has its blocks, those that lie wholly within the tokens that
it will have computed after this step become known by their content, and stay known if it is preempted in this very
step. Equal contents are not merged; of several such blocks the first registered is found.

*Lookup*, whenever the head of the queue asks to be admitted, preempted ones too: the longest run of known blocks from
the start, at most floor((tokens - 1) / block_size), so that a token is left to compute. Found blocks are shared, and
counted once. Admission takes them and the rest; a found block that nobody owns counts as one taken from the free ones.

*Free queue*: new blocks are taken from its front, and what they held is forgotten. Who leaves or is preempted frees
from the last block to the first: those that nobody else owns go to the end of the queue if they have content, to its
front if they have none. A found block leaves the queue while somebody owns it.

*Policies.* Under `vllm` all is as in vLLM. Under the others an admission asks for the blocks of all its tokens less
those found, plus the found ones that nobody owns; it takes them at once. As under `vllm`, nobody is admitted in a step
that has preempted somebody (without a cache nobody would fit). Its prefill computes what was not found, and
`max_tokens` counts that. What a token budget gives to a prompt in this step is registered as the budget is shared out:
running requests first, then those admitted, so that these find what went before in the same step.

*Instances* have a cache each. One that decodes only admits as others do, and shares blocks; but its requests come with
their KV, whole, so this saves memory alone and is no hit. After a preemption it saves computing.

*Prefill instances* keep no KV beyond their step, and have a cache of `prefix_cache_blocks`, by default as many as
their KV capacity holds. Who is taken up shares what is found, and takes new blocks for the other full blocks of its
prompt, from the start, as far as blocks are free: the rest is computed and not kept. All are freed when the step ends
and the next can begin, in the order in which they were taken up. `max_tokens` counts tokens to compute; a queue's load
counts whole prompts.

It imports nothing of the package but the reference's own parts.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

from .reference_queue import RequestState


class Contents:
    """Numbers for the contents of blocks: equal ones for equal tokens with equal tokens before them."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.numbers: dict[tuple[int, Any], int] = {}  # by the number of the block before, and the block's own pieces
        self.chains: dict[RequestState, tuple[list[int], Iterator[Any]]] = {}

    def of(self, request: RequestState, blocks: int) -> list[int]:
        """Numbers of the request's full blocks, of so many at least."""
        if request not in self.chains:
            texts = request.texts or [(("p", request.key), request.prompt), (("o", request.key), request.output)]
            self.chains[request] = [], pieces(texts, self.block_size)
        chain, rest = self.chains[request]
        while len(chain) < blocks:
            step = (chain[-1] if chain else -1, next(rest))
            chain.append(self.numbers.setdefault(step, len(self.numbers)))
        return chain


def pieces(texts: Iterable[tuple[Any, int]], block_size: int) -> Iterator[Any]:
    """What full blocks are made of: (text, first token, tokens) of each piece."""
    block, room = [], block_size
    for text, tokens in texts:
        start = 0
        while start < tokens:
            n = min(room, tokens - start)
            block.append((text, start, n))
            start += n
            room -= n
            if room == 0:
                yield tuple(block)
                block, room = [], block_size


class PrefixCache:
    """The blocks of one instance. Blocks without content are alike, so free ones are a number."""

    def __init__(self, num_blocks: int, contents: Contents) -> None:
        self.block_size, self.contents = contents.block_size, contents
        self.blank = num_blocks  # free blocks without content: the front of the free queue
        self.queue: OrderedDict[int, None] = OrderedDict()  # the rest of it, next to be evicted first
        self.made = self.evicted = 0
        self.owners: dict[int, int] = {}
        self.content: dict[int, int] = {}
        self.known: dict[int, dict[int, None]] = {}  # blocks of a content in the order of registration
        self.tables: dict[RequestState, list[int]] = {}
        self.registered: dict[RequestState, int] = {}

    @property
    def free(self) -> int:
        """Blocks that nobody owns."""
        return self.blank + len(self.queue)

    def find(self, request: RequestState) -> tuple[list[int], int]:
        """Known blocks from the start of a request's tokens, and how many of them nobody owns."""
        most = (request.prompt + request.emitted - 1) // self.block_size
        chain, known, found = self.contents.of(request, most), self.known, []
        for i in range(most):
            blocks = known.get(chain[i])
            if not blocks:
                break
            found.append(next(iter(blocks)))
        return found, sum(not self.owners[block] for block in found)

    def share(self, request: RequestState, found: list[int]) -> None:
        """A request is admitted, and owns the blocks found."""
        for block in found:
            if not self.owners[block]:
                del self.queue[block]
            self.owners[block] += 1
        self.tables[request], self.registered[request] = found, len(found)

    def take(self, request: RequestState, n: int) -> None:
        """New blocks behind those that a request has."""
        table = self.tables[request]
        for _ in range(n):
            if self.blank:
                self.blank -= 1
            else:
                self.forget(next(iter(self.queue)))
            self.owners[self.made] = 1
            table.append(self.made)
            self.made += 1

    def forget(self, block: int) -> None:
        del self.queue[block], self.owners[block]
        content = self.content.pop(block)
        del self.known[content][block]
        if not self.known[content]:
            del self.known[content]
        self.evicted += 1

    def register(self, request: RequestState, tokens: int) -> None:
        """So many tokens of a request are computed by the end of this step: their full blocks become known."""
        full = tokens // self.block_size
        if full <= self.registered[request]:
            return
        chain, table = self.contents.of(request, full), self.tables[request]
        for i in range(self.registered[request], full):
            self.content[table[i]] = chain[i]
            self.known.setdefault(chain[i], {})[table[i]] = None
        self.registered[request] = full

    def release(self, request: RequestState) -> int:
        """A request leaves its blocks. Returns how many of them nobody owns now."""
        before = self.free
        for block in reversed(self.tables.pop(request)):
            self.owners[block] -= 1
            if self.owners[block]:
                continue
            if block in self.content:
                self.queue[block] = None
            else:
                self.blank += 1
                del self.owners[block]
        del self.registered[request]
        return self.free - before
