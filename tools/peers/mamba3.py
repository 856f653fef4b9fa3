"""The Mamba-3 projection preprocess by PyTorch, at the sizes of a case."""

EPSILON, DT_MIN, DT_MAX, A_FLOOR = 1e-5, 1e-3, 0.1, 1e-4


def preprocess(torch, sizes):
    """The forward as a function of the packed rows and dt_bias; all its results are arrays of their own."""
    inner, state, bc = sizes["inner_size"], sizes["state_size"], sizes["bc_rows"]
    heads, rope = sizes["heads"], sizes["rope_angles"]
    widths = [inner, inner, bc * state, bc * state, heads, heads, heads, rope]

    def normalised(rows):
        rows = rows.unflatten(-1, (bc, state))
        wide = rows.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPSILON)).to(rows.dtype)

    def run(projected, dt_bias):
        z, x, b, c, dd_dt, dd_a, trap, angle = projected.split(widths, dim=-1)
        dt = torch.nn.functional.softplus(dd_dt.float() + dt_bias).clamp(DT_MIN, DT_MAX)
        a = dd_a.float()
        tail = torch.where(a >= 0, 1 + a, 1 / (1 - a.clamp(max=0)))
        adt = -dt * tail.clamp(min=A_FLOOR)
        copies = [array.contiguous() for array in (z, x, angle)]
        return [*copies, trap.float().contiguous(), normalised(b), normalised(c), dt, adt]

    return run, sum(widths)


def peers(torch, case, dtype, device, _results):
    """Names, each with what makes the function to time."""
    sizes = case["shape"]
    function, width = preprocess(torch, sizes)
    backward = case["pass"] != "forward"
    projected = torch.randn(sizes["rows"], width, dtype=dtype, device=device, requires_grad=backward)
    dt_bias = torch.randn(sizes["heads"], device=device, requires_grad=backward)

    def timed(forward):
        if not backward:
            return lambda: forward(projected, dt_bias)
        outputs = forward(projected, dt_bias)
        gradients = [torch.randn_like(output) for output in outputs]
        leaves = [projected, dt_bias]
        return lambda: torch.autograd.grad(outputs, leaves, gradients, retain_graph=True)

    yield "eager", lambda: timed(function)
    yield "torch.compile", lambda: timed(torch.compile(function, dynamic=False))
