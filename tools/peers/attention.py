"""Attention by PyTorch, at the sizes of a case."""


class Sizes:
    def __init__(self, shape):
        self.sequences = shape["sequences"]
        self.shared, self.own = shape["shared_tokens"], shape["own_tokens"]
        self.tokens, self.queries = self.shared + self.own, shape["queries"]
        self.heads, self.kv_heads = shape["heads"], shape["kv_heads"]
        self.key, self.value, self.position = shape["key_dim"], shape["value_dim"], shape["position_dim"]
        self.page, self.spare = shape["page_size"], shape["spare_pages"]
        self.scale = (self.key + self.position) ** -0.5

    @property
    def width(self):
        """Pages of a sequence: the shared ones, then its own."""
        return -(-self.shared // self.page) + -(-self.own // self.page)


class Problem:
    """The leaves of a call, tokens before heads as pages have them, and the gradient of its output."""

    def __init__(self, torch, sizes, dtype, device):
        def random(*shape):
            return torch.randn(shape, dtype=dtype, device=device, requires_grad=True)

        self.torch, self.sizes = torch, sizes
        n = sizes
        self.mla = n.position > 0
        self.q = random(n.sequences, n.queries, n.heads, n.key + n.position)
        self.k = random(n.sequences, n.tokens, n.kv_heads, n.key + n.position)
        # MLA's latent rows are both.
        self.v = None if self.mla else random(n.sequences, n.tokens, n.kv_heads, n.value)
        self.gradient = random(n.sequences, n.queries, n.heads, n.value).detach()

    def leaves(self):
        return [leaf for leaf in (self.q, self.k, self.v) if leaf is not None]

    def heads_first(self, expand):
        """q, k and v with heads before tokens; with a row of k and v for each head if `expand`."""
        n = self.sizes
        v = self.k[..., : n.key] if self.v is None else self.v
        q, k, v = (array.transpose(1, 2) for array in (self.q, self.k, v))
        if expand and n.heads > n.kv_heads:
            k, v = (array.repeat_interleave(n.heads // n.kv_heads, dim=1) for array in (k, v))
        return q, k, v


def sdpa(problem, backend, expand):
    """The output by a backend of scaled_dot_product_attention."""
    torch, n = problem.torch, problem.sizes
    from torch.nn.attention import sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right

    q, k, v = problem.heads_first(expand)
    options = {"scale": n.scale}
    if n.queries == n.tokens:
        options["is_causal"] = True
    elif n.queries > 1:
        options["attn_mask"] = causal_lower_right(n.queries, n.tokens)
    if not expand and n.heads > n.kv_heads:
        options["enable_gqa"] = True
    with sdpa_kernel(backend):
        output = torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)
    return output.transpose(1, 2)


def flex(problem):
    """The output by FlexAttention."""
    torch, n = problem.torch, problem.sizes
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    ahead = n.tokens - n.queries
    mask = create_block_mask(
        lambda b, h, q, k: k <= q + ahead, None, None, n.queries, n.tokens, device=problem.q.device
    )
    compiled = torch.compile(flex_attention, dynamic=False)
    q, k, v = problem.heads_first(False)

    def run():
        output = compiled(q, k, v, block_mask=mask, scale=n.scale, enable_gqa=n.heads > n.kv_heads)
        return output.transpose(1, 2)

    return run


def forwards(problem):
    """By name, what makes a function that gives the output."""
    from torch.nn.attention import SDPBackend

    def of(backend):
        def make():
            try:
                sdpa(problem, backend, False)
                return lambda: sdpa(problem, backend, False)
            except (RuntimeError, TypeError):
                # Of those that want as many heads of keys and values.
                sdpa(problem, backend, True)
                return lambda: sdpa(problem, backend, True)

        return make

    names = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "math": "MATH"}
    made = {name: of(getattr(SDPBackend, backend)) for name, backend in names.items() if hasattr(SDPBackend, backend)}
    made["flex"] = lambda: flex(problem)
    return made


def backward(problem, make):
    """The gradients of all leaves, of a forward that was run before."""
    output = make()()

    def run():
        return problem.torch.autograd.grad(output, problem.leaves(), problem.gradient, retain_graph=True)

    return run


def paged(problem, make):
    """As `backward`, of keys and values that lie in pages, and their gradients too."""
    torch, n = problem.torch, problem.sizes
    shared = -(-n.shared // n.page)
    own = n.width - shared
    pages = shared + n.sequences * own + n.spare
    order = torch.randperm(pages, device=problem.q.device)
    first = order[:shared].expand(n.sequences, shared)
    rest = order[shared : shared + n.sequences * own].view(n.sequences, own)
    table = torch.cat([first, rest], dim=1).flatten()
    dense = [leaf for leaf in (problem.k, problem.v) if leaf is not None]
    caches = [torch.randn(pages, n.page, *leaf.shape[2:], dtype=leaf.dtype, device=leaf.device) for leaf in dense]
    gradients = backward(problem, make)

    def gather(cache):
        return cache[table].view(n.sequences, n.width * n.page, *cache.shape[2:])

    def scatter(gradient, cache):
        padding = n.width * n.page - n.tokens
        if padding:
            gradient = torch.nn.functional.pad(gradient, (0, 0, 0, 0, 0, padding))
        gradient = gradient.reshape(table.numel(), n.page, *cache.shape[2:])
        return torch.zeros_like(cache).index_add_(0, table, gradient)

    def run():
        for cache in caches:
            gather(cache)
        _, *of_history = gradients()
        return [scatter(gradient, cache) for gradient, cache in zip(of_history, caches)]

    return run


def peers(torch, case, dtype, device, results):
    """Names, each with what makes the function to time; the last needs the times of those before."""
    problem = Problem(torch, Sizes(case["shape"]), dtype, device)
    made = forwards(problem)
    if case["pass"] == "forward":
        for name, make in made.items():
            yield name, lambda make=make: without_graph(torch, make())
        return
    for name, make in made.items():
        yield name, lambda make=make: backward(problem, make)
    timed = [name for name, result in results.items() if isinstance(result, float)]
    if timed:
        best = min(timed, key=results.get)
        yield f"from pages ({best})", lambda: paged(problem, made[best])


def without_graph(torch, forward):
    def run():
        with torch.no_grad():
            return forward()

    return run
