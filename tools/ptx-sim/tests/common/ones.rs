//! A kernel of tensor cores whose every result is known, to be edited.

/// D = A * B with 128x8x16 ones in bf16: every element is 16.
pub(crate) const KERNEL: &str = "
.version 9.0
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 p) {
    .reg .pred %p<8>; .reg .b32 %r<40>; .reg .b64 %rd<20>;
    .shared .align 1024 .b8 sm[8192];
    mov.u32 %r1, %tid.x;
    shr.u32 %r2, %r1, 5;
    mov.u32 %r3, sm;
    mov.u32 %r4, %r1;
FILL:
    shl.b32 %r5, %r4, 2;
    add.u32 %r5, %r5, %r3;
    st.shared.u32 [%r5], 0x3f803f80;
    add.u32 %r4, %r4, 128;
    setp.lt.u32 %p1, %r4, 1088;
    @%p1 bra FILL;
    setp.ne.u32 %p2, %r1, 0;
    setp.ne.u32 %p3, %r2, 0;
    setp.eq.u32 %p4, %r1, 4096;
    @%p2 bra INITIALISED;
    mbarrier.init.shared::cta.b64 [sm+4608], 1;
    fence.mbarrier_init.release.cluster;
INITIALISED:
    bar.warp.sync 0xffffffff;
    @%p3 bra ALLOCATED;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [sm+4616], 32;
    tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
ALLOCATED:
    fence.proxy.async.shared::cta;
    tcgen05.fence::before_thread_sync;
    bar.sync 0;
    tcgen05.fence::after_thread_sync;
    ld.shared.u32 %r10, [sm+4616];
    shl.b32 %r11, %r2, 21;
    add.u32 %r11, %r11, %r10;
    @%p2 bra ISSUED;
    cvt.u64.u32 %rd1, %r3;
    shr.u64 %rd1, %rd1, 4;
    or.b64 %rd2, %rd1, 0x0000401000080000;
    add.u64 %rd3, %rd2, 256;
    tcgen05.mma.cta_group::1.kind::f16 [%r10], %rd2, %rd3, 0x08020490, %p4;
    //after mma
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [sm+4608];
ISSUED:
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p5, [sm+4608], 0;
    @!%p5 bra WAIT;
    bar.warp.sync 0xffffffff;
    tcgen05.fence::after_thread_sync; //wait
    tcgen05.ld.sync.aligned.32x32b.x8.b32 {%r20, %r21, %r22, %r23, %r24, %r25, %r26, %r27}, [%r11];
    tcgen05.wait::ld.sync.aligned;
    ld.param.u64 %rd4, [p];
    mul.wide.u32 %rd5, %r1, 32;
    add.u64 %rd4, %rd4, %rd5;
    st.global.v4.u32 [%rd4], {%r20, %r21, %r22, %r23};
    st.global.v4.u32 [%rd4+16], {%r24, %r25, %r26, %r27};
    tcgen05.fence::before_thread_sync;
    bar.sync 0; //end
    @%p3 bra END;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r10, 32;
END:
    ret;
}";

/// The kernel with other text in some places, each of which it must have.
pub(crate) fn edited(edits: &[(&str, &str)]) -> String {
    let mut ptx = KERNEL.to_string();
    for (from, to) in edits {
        assert!(ptx.contains(from), "{from}");
        ptx = ptx.replacen(from, to, 1);
    }
    ptx
}
