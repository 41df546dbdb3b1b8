//! The kinds of planted faults.

named! {
/// Change that a fault makes to the kernel.
Kind {
    PassWait "pass-wait": "an mbarrier wait succeeds at once",
    DropArrive "drop-arrive": "an mbarrier arrival is left out",
    DropExpectTx "drop-expect-tx": "expected bytes are not announced, or the arrival with them",
    DropInit "drop-init": "an mbarrier is not initialised, or not invalidated",
    DropFence "drop-fence": "a fence is left out",
    DropCommit "drop-commit": "a tcgen05.commit is left out",
    DropTensorWait "drop-tensor-wait": "a tcgen05.wait is left out",
    DropTensor "drop-tensor": "a tcgen05.cp, mma, ld or st, or a wgmma.mma_async, is left out",
    DropAlloc "drop-alloc": "tensor memory is not allocated, relinquished or freed",
    DropBarrier "drop-barrier": "a CTA or cluster barrier is left out",
    DropWarpSync "drop-warp-sync": "a bar.warp.sync is left out",
    DropGroupWait "drop-group-wait": "a commit or wait of a group of copies or of wgmma is left out",
    DropCopy "drop-copy": "an asynchronous copy is left out",
    DropGridWait "drop-grid-wait": "a griddepcontrol is left out",
    DropStore "drop-store": "a store or reduction is left out",
    DropShuffle "drop-shuffle": "a shuffle gives a lane its own value",
    LateWait "late-wait": "a wait comes after the next memory access or asynchronous operation",
    LateExpectTx "late-expect-tx": "bytes are announced after the next copy",
    EarlyFence "early-fence": "a fence comes before the access or wait in front of it",
    EarlyCommit "early-commit": "a commit comes before the operation in front of it",
    EarlyArrive "early-arrive": "an arrival comes before the access in front of it",
    WeakenOrder "weaken-order": "release, acquire or acq_rel becomes relaxed",
    ExpectBytes "expect-bytes": "another number of bytes is expected",
    CopyBytes "copy-bytes": "another number of bytes is copied",
    CopyAddress "copy-address": "an asynchronous copy goes to or comes from another address",
    BarrierAddress "barrier-address": "another mbarrier is used",
    InitCount "init-count": "an mbarrier expects one arrival more or less",
    Parity "parity": "a wait looks at the other phase",
    Coordinate "coordinate": "a tensor copy takes another box",
    Multicast "multicast": "another set of CTAs is addressed",
    Rank "rank": "another CTA of the cluster is addressed",
    BarrierId "barrier-id": "another hardware barrier, or another thread count",
    SmemDescriptor "smem-descriptor": "a field of a shared memory descriptor differs",
    InstructionDescriptor "instruction-descriptor": "a bit of an instruction descriptor differs",
    TensorAddress "tensor-address": "another tensor memory column or lane",
    AllocColumns "alloc-columns": "half or twice the tensor memory columns",
    Accumulate "accumulate": "an MMA adds where it should overwrite, or the reverse",
    Negate "negate": "a wgmma.mma_async negates an operand, or does not",
    Transpose "transpose": "a wgmma.mma_async takes an operand transposed, or does not",
    GroupCount "group-count": "a wgmma.wait_group lets one group more be pending",
    Elect "elect": "all lanes issue, or none",
    Guard "guard": "a predicate in front of an instruction is negated",
    Compare "compare": "a comparison is another one",
    LoopBound "loop-bound": "a loop ends one step early or late",
    Offset "offset": "a load or store is off by one element",
    ShuffleLane "shuffle-lane": "a shuffle takes another lane's value",
    Select "select": "a selection takes the other value",
    Selector "selector": "a byte permutation selects other bytes",
    Shift "shift": "a shift is off by one",
    Constant "constant": "a constant operand of integer arithmetic is off",
    Operation "operation": "an arithmetic operation is another one",
    TensorMap "tensor-map": "an argument of a tensor map differs on the host",
    Launch "launch": "the launch has less shared memory or another grid",
}}

impl Kind {
    /// Whether it is a fault of the host, which leaves the kernel as it is.
    pub fn is_host(self) -> bool {
        matches!(self, Kind::TensorMap | Kind::Launch)
    }
}
