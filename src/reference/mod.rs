//! Float64 on the CPU: an independent twin of every kernel.
