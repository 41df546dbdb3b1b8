//! Every opcode that public Blackwell kernels use decodes, and opcodes that are not modelled are named.

use ptx_sim::Module;
use ptx_sim::inventory::inventory;

/// Instructions that must be executed.
const EXECUTED: &str = "
cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;
cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint [%r1], [%d1], %r2, [%r3], %d2;
cp.async.bulk.tensor.3d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [%r1], [%d1, {%r2, %r3, %r4}], [%r1], %h1, %d2;
cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%d1, {%r1, %r2, %r3, %r4, %r1}], [%r2];
mbarrier.arrive.expect_tx.release.cta.shared::cluster.b64 _, [%r1], %r2; mbarrier.init.shared::cta.b64 [%r1], 1;
mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p1, [%r1], %r2, %r3;
abs.f32 %f1, %f2; add.f16 %h1, %h2, %h3; add.rn.f16 %h1, %h2, %h3; add.rn.f16x2 %r1, %r2, %r3;
add.s16 %h1, %h2, 3; add.s32 %r1, %r2, -1; add.s64 %d1, %d2, 8; and.b16 %h1, %h2, 1; and.b32 %r1, %r2, 1;
and.b64 %d1, %d2, 1; and.pred %p1, %p2, %p3; bar.arrive 1, 64;
cp.async.ca.shared.global.L2::128B [%r1], [%d1], 16; cp.async.commit_group; cp.async.wait_all; cp.async.wait_group 1;
ldmatrix.sync.aligned.m8n8.x4.shared::cta.b16 {%r1, %r2, %r3, %r4}, [%r1];
stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%r1], {%r1, %r2, %r3, %r4};
movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r2; bar.sync 0; bar.warp.sync -1;
barrier.cluster.arrive.relaxed.aligned; barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire;
barrier.cluster.wait.acquire.aligned; barrier.cluster.wait.aligned; bra L; bra.uni L;
createpolicy.fractional.L2::evict_first.b64 %d1, 0f3F800000; cvt.f32.f16 %f1, %h1; cvt.rn.bf16x2.f32 %r1, %f1, %f2;
cvt.rn.f16.f32 %h1, %f1; cvt.rn.f16.s32 %h1, %r1; cvt.rn.f16x2.e2m1x2 %r1, %b1; cvt.rn.f16x2.e4m3x2 %r1, %h1;
cvt.rn.f16x2.f32 %r1, %f1, %f2; cvt.rn.satfinite.e2m1x2.f32 %b1, %f1, %f2;
cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2; cvt.s16.s8 %h1, %h2; cvt.s32.s8 %r1, %r2; cvt.s64.s32 %d1, %r1;
cvt.u16.u32 %h1, %r1; cvt.u32.u16 %r1, %h1; cvt.u32.u64 %r1, %d1; cvt.u64.u32 %d1, %r1;
cvta.param.u64 %d1, %d2; cvta.shared.u64 %d1, %d2; cvta.to.global.u64 %d1, %d2; cvta.to.shared.u64 %d1, %d2;
div.rn.f32 %f1, %f2, %f3; div.s32 %r1, %r2, %r3; div.u16 %h1, %h2, 3; div.u32 %r1, %r2, %r3;
elect.sync %r1|%p1, -1; fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;
fma.rn.f16x2 %r1, %r2, %r3, %r4; fma.rn.f32 %f1, %f2, %f3, %f1; griddepcontrol.launch_dependents;
griddepcontrol.wait; ld.global.b32 %r1, [%d1]; ld.global.b64 %d1, [%d2]; ld.global.b8 %h1, [%d1+1];
ld.global.v4.f32 {%f1, %f2, %f3, %f1}, [%d1]; ld.param.b32 %r1, [p]; ld.param.b64 %d1, [p+8]; ld.param.s32 %r1, [p];
ld.param.v2.b64 {%d1, %d2}, [p]; ld.param.v4.b32 {%r1, %r2, %r3, %r4}, [p+16]; ld.shared.b128 %q1, [%r1];
ld.shared.b32 %r1, [s]; ld.shared.u16 %h1, [%r1]; ld.shared.v2.b32 {%r1, %r2}, [%r3]; ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [s+16];
mad.lo.s32 %r1, %r2, %r3, %r4; mad.lo.s64 %d1, %d2, %d3, %d1; mapa.shared::cluster.u32 %r1, %r2, 0; max.f32 %f1, %f2, %f3;
max.s32 %r1, %r2, %r3; min.s32 %r1, %r2, %r3; min.u32 %r1, %r2, %r3; mov.b16 %h1, %h2; mov.b32 %r1, {%h1, %h2};
mov.b64 {%r1, %r2}, %d1; mov.pred %p1, 0; mov.pred %p1, %p2; mov.s32 %r1, %r2; mov.u32 %r1, s; mov.u64 %d1, p; mul.f16 %h1, %h2, %h3;
mul.f32 %f1, %f2, 0f40000000; mul.f32x2 %d1, %d2, %d3; mul.ftz.f32 %f1, %f2, %f3; mul.hi.s32 %r1, %r2, %r3;
mul.hi.u32 %r1, %r2, %r3; mul.hi.u64 %d1, %d2, %d3; mul.lo.s16 %h1, %h2, 3; mul.lo.s32 %r1, %r2, %r3; mul.lo.s64 %d1, %d2, %d3;
mul.rn.f16x2 %r1, %r2, %r3; mul.wide.s32 %d1, %r1, 4; mul.wide.u32 %d1, %r1, 4; neg.s32 %r1, %r2; not.b32 %r1, %r2;
not.pred %p1, %p2; or.b16 %h1, %h2, %h3; or.b32 %r1, %r2, %r3; or.b64 %d1, %d2, %d3; or.pred %p1, %p2, %p3;
prefetch.tensormap [%d1]; rcp.rn.f32 %f1, %f2; rem.s32 %r1, %r2, 3; ret; selp.b16 %h1, %h2, %h3, %p1; selp.b32 %r1, 1, 0, %p1;
selp.u32 %r1, 1, 0, %p1; setmaxnreg.dec.sync.aligned.u32 24; setmaxnreg.inc.sync.aligned.u32 240; setp.eq.b16 %p1, %h1, 0;
setp.eq.b32 %p1, %r1, 0; setp.eq.b64 %p1, %d1, 0; setp.eq.f32 %p1, %f1, 0f00000000; setp.eq.u32 %p1, %r1, 0; setp.ge.s32 %p1, %r1, 0;
setp.gt.s32 %p1, %r1, 0; setp.gt.u32 %p1, %r1, 0; setp.gt.u64 %p1, %d1, 0; setp.le.u64 %p1, %d1, 0; setp.lt.s32 %p1, %r1, 0;
setp.lt.u32 %p1, %r1, 0; setp.ne.b16 %p1, %h1, 0; setp.ne.b32 %p1, %r1, 0; setp.ne.b64 %p1, %d1, 0;
shfl.sync.bfly.b32 %r1|%p1, %r2, 1, 31, -1; shfl.sync.down.b32 %r1, %r2, 1, 31, -1; shfl.sync.idx.b32 %r1, %r2, 0, 31, -1;
shl.b16 %h1, %h2, 1; shl.b32 %r1, %r2, 1; shl.b64 %d1, %d2, 1; shr.s16 %h1, %h2, 1; shr.s32 %r1, %r2, 1; shr.s64 %d1, %d2, 1;
shr.u16 %h1, %h2, 1; shr.u32 %r1, %r2, 1; shr.u64 %d1, %d2, 1; st.global.b32 [%d1], %r1; st.global.b64 [%d1], %d2; st.global.b8 [%d1], %h1;
st.global.v4.b32 [%d1], {%r1, %r2, %r3, %r4}; st.global.v8.b32 [%d1], {%r1, %r2, %r3, %r4, %r1, %r2, %r3, %r4};
st.relaxed.cta.global.L1::no_allocate.v8.b32 [%d1], {%r1, %r2, %r3, %r4, %r1, %r2, %r3, %r4}; st.shared.b32 [%r1], %r2;
st.shared.v4.b32 [%r1], {%r1, %r2, %r3, %r4}; st.shared.v4.f32 [%r1], {%f1, %f2, %f3, %f1}; sub.s16 %h1, %h2, %h3;
sub.s32 %r1, %r2, %r3; sub.s64 %d1, %d2, %d3; xor.b16 %h1, %h2, %h3; xor.b32 %r1, %r2, %r3; xor.pred %p1, %p2, %p3;";

/// Copies and barriers in all spellings of public kernels.
const ASYNCHRONOUS: &str = "
cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%d1, {%r2, %r3}], [%r1];
cp.async.bulk.tensor.3d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%r1], [%d1, {%r2, %r3, %r4}], [%r1], %d2;
cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%d1, {%r1, %r2, %r3}], [%r2];
cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%r1], [%d1, {%r2, %r3, %r4}], [%r1], %d2;
cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.cta_group::1 [%r1], [%d1, {%r2, %r3, %r4}], [%r1];
cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.cta_group::1.L2::cache_hint [%r1], [%d1, {%r2, %r3, %r4}], [%r1], %d2;
cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.cta_group::2 [%r1], [%d1, {%r2, %r3, %r4}], [%r1];
cp.async.bulk.tensor.4d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [%r1], [%d1, {%r2, %r3, %r4, %r1}], [%r1], %h1, %d2;
cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2.multicast::cluster [%r1], [%d1, {%r2, %r3, %r4, %r1}], [%r1], %h1;
cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group.L2::cache_hint [%d1, {%r1, %r2, %r3, %r4, %r1}], [%r2], %d2;
cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%d1, {%r1, %r2, %r3, %r4, %r1}], [%r2];
cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2.multicast::cluster [%r1], [%d1, {%r1, %r2, %r3, %r4, %r1}], [%r2], %h1;
mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r1], %r2; mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%r1], %r2;
mbarrier.arrive.expect_tx.shared::cta.b64 %d1, [%r1], %r2; mbarrier.arrive.release.cta.shared::cluster.b64 _, [%r1];
mbarrier.arrive.release.cta.shared::cta.b64 %d1, [%r1]; mbarrier.arrive.shared::cluster.b64 _, [%r1];
mbarrier.arrive.shared::cta.b64 %d1, [%r1], 2; mbarrier.expect_tx.shared::cta.b64 [%r1], %r2;
mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r1], %r2; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r1], %r2;
mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], %r2;
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %q1;
clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r1, %r2, %r3, _}, %q1;
clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %r1, %q1;
clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast::cluster::all.b128 [%r1], [%r2];
clusterlaunchcontrol.try_cancel.async.mbarrier::complete_tx::bytes.b128 [%d1], [%d2];";

/// Warp matrices, and instructions that public kernels do not use.
const MORE: &str = "
mma.sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.f32.e2m1.e2m1.f32.ue8m0 {%f0, %f1, %f2, %f3}, {%r1, %r2, %r3, %r4}, {%r1, %r2}, {%f0, %f1, %f2, %f3}, %r1, {%h1, 0}, %r2, {0, 0};
mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%r1, %r2, %r3, %r4}, {%r1, %r2}, {%f0, %f1, %f2, %f3};
mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%r1, %r2}, {%r3}, {%f0, %f1, %f2, %f3};
mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%f0, %f1, %f2, %f3}, {%r1, %r2}, {%r3}, {%f0, %f1, %f2, %f3};
mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%r3, %r4}, {%r1, %r2}, %r3, {%r1, %r2};
mma.sync.aligned.m16n8k16.row.col.f16.e5m2.e4m3.f16 {%r3, %r4}, {%r1, %r2}, %r3, {%r1, %r2};
mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e4m3.f32 {%f0, %f1, %f2, %f3}, {%r1, %r2, %r3, %r4}, {%r1, %r2}, {%f0, %f1, %f2, %f3};
mma.sync.aligned.m16n8k16.row.col.satfinite.s32.u8.s8.s32 {%r1, %r2, %r3, %r4}, {%r1, %r2}, {%r3}, {%r1, %r2, %r3, %r4};
mma.sync.aligned.m16n8k64.row.col.s32.s4.u4.s32 {%r1, %r2, %r3, %r4}, {%r1, %r2, %r3, %r4}, {%r3, %r4}, {%r1, %r2, %r3, %r4};
mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.xor.popc {%r1, %r2, %r3, %r4}, {%r1, %r2, %r3, %r4}, {%r1, %r2}, {%r1, %r2, %r3, %r4};
mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%r1, %r2}, %r1, %r2, {%r3, %r4};
mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f16.e2m1.e3m2.f16 {%r3, %r4}, {%r1, %r2, %r3, %r4}, {%r1, %r2}, {%r1, %r2};
mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3 {%f0, %f1, %f2, %f3}, {%r1, %r2, %r3, %r4}, {%r1, %r2}, {%f0, %f1, %f2, %f3}, %r1, {0, 1}, %r2, {0, 3};
set.lt.u32.s32 %r1, %r2, %r3; set.gtu.and.f32.f32 %f1, %f2, %f3, !%p1; set.eq.f16x2.f16x2 %r1, %r2, %r3; testp.normal.f32 %p1, %f1;
fns.b32 %r1, %r2, 0, 1; bmsk.clamp.b32 %r1, %r2, %r3; szext.wrap.s32 %r1, %r2, %r3; discard.global.L2 [%d1], 128;
cvt.pack.sat.u8.s32.b32 %r1, %r2, %r3, %r4; div.rz.f32 %f1, %f2, %f3; rcp.rp.f32 %f1, %f2; sqrt.rm.f32 %f1, %f2;";

/// Instructions that parse and are named.
const NAMED: &str = "
mma.sp.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%r1, %r2, %r3, %r4}, {%r1, %r2, %r3, %r4}, {%f0, %f1, %f2, %f3}, %r1, 0;
mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3, %f0, %f1, %f2, %f3}, {%r1, %r2}, {%r1, %r2}, {%f0, %f1, %f2, %f3, %f0, %f1, %f2, %f3};
mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%d1, %d2}, %d1, %d2, {%d1, %d2};
multimem.ld_reduce.relaxed.gpu.global.add.u32 %r1, [%d1];
tcgen05.shift.cta_group::1.down [%r1];";

fn module(body: &str) -> Module {
    let src = format!(
        ".version 9.0\n.target sm_100a\n.address_size 64\n.visible .entry k(.param .align 16 .b8 p[64]) {{\n\
         .reg .pred %p<4>; .reg .b8 %b<2>; .reg .b16 %h<4>; .reg .b32 %r<5>; .reg .f32 %f<4>; .reg .b64 %d<4>;\n\
         .reg .b128 %q<2>; .shared .align 16 .b8 s[64];\nL:\n{body}\n}}"
    );
    Module::parse(&src).unwrap()
}

fn executed(source: &str) -> Vec<String> {
    let list = inventory(&module(source));
    assert!(list.problems.is_empty(), "{:?}", list.problems);
    for e in &list.opcodes {
        assert_eq!(e.unmodelled, None, "{}", e.opcode);
    }
    list.opcodes.into_iter().map(|e| e.opcode).collect()
}

#[test]
fn every_opcode_of_public_kernels_is_executed() {
    let sources = [EXECUTED, ASYNCHRONOUS, MORE, &tensor()];
    let known: Vec<String> = sources.iter().flat_map(|s| executed(s)).collect();
    let mut listed = 0;
    for line in include_str!("data/opcodes.txt").lines() {
        if line.starts_with('#') {
            continue;
        }
        let (families, opcode) = line.split_once(' ').expect("families and opcode");
        assert!(families.bytes().all(|f| (b'A'..=b'E').contains(&f)));
        let opcode = opcode.trim().to_string();
        assert!(known.contains(&opcode), "no instruction here is {opcode}");
        listed += 1;
    }
    assert_eq!(listed, 221);
}

#[test]
fn what_is_not_modelled_is_named() {
    let list = inventory(&module(NAMED));
    assert!(list.problems.is_empty(), "{:?}", list.problems);
    assert_eq!(list.opcodes.len(), NAMED.matches(';').count());
    for e in list.opcodes {
        assert!(
            e.unmodelled.is_some_and(|w| w.contains("not modelled")),
            "{}",
            e.opcode
        );
    }
}

#[test]
fn undefined_forms_are_refused() {
    for wrong in [
        "mma.sync.aligned.m16n8k16.row.row.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%r1, %r2, %r3, %r4}, {%r1, %r2}, {%f0, %f1, %f2, %f3};",
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.f16.f32 {%f0, %f1, %f2, %f3}, {%r1, %r2, %r3, %r4}, {%r1, %r2}, {%f0, %f1, %f2, %f3};",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f16 {%f0, %f1, %f2, %f3}, {%r1, %r2, %r3, %r4}, {%r1, %r2}, {%r1, %r2};",
        "mma.sync.aligned.m16n8k16.row.col.f16.bf16.bf16.f16 {%r1, %r2}, {%r1, %r2, %r3, %r4}, {%r1, %r2}, {%r1, %r2};",
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%r1, %r2}, {%r1, %r2}, {%f0, %f1, %f2, %f3};",
        "mma.sync.aligned.m16n8k8.row.col.satfinite.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%r1, %r2}, {%r3}, {%f0, %f1, %f2, %f3};",
        "mma.sync.aligned.m16n8k4.row.col.s32.s8.s8.s32 {%r1, %r2, %r3, %r4}, {%r1, %r2}, {%r3}, {%r1, %r2, %r3, %r4};",
        "set.lt.u32.b32 %r1, %r2, %r3;",
        "set.lt.f16x2.bf16x2 %r1, %r2, %r3;",
        "set.lt.bogus.u32.s32 %r1, %r2, %r3;",
        "testp.f32 %p1, %f1;",
        "testp.normal.b32 %p1, %r1;",
        "discard.global.L2 [%d1], 64;",
        "discard.shared.L2 [%r1], 128;",
        "clusterlaunchcontrol.try_cancel.async.shared::cta.b128 [%r1], [%r2];",
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %d1;",
        "clusterlaunchcontrol.query_cancel.get_first_ctaid.b32.b128 %r1, %q1;",
    ] {
        let list = inventory(&module(wrong));
        assert!(
            list.opcodes.iter().any(|e| e.unmodelled.is_some()),
            "{wrong}"
        );
    }
}

#[test]
fn what_keeps_a_kernel_from_running_is_said() {
    let list = inventory(&module("{ .local .b32 twice; .local .b32 twice; }"));
    assert_eq!(list.problems.len(), 1, "{:?}", list.problems);
    let elsewhere =
        ".version 9.0\n.target sm_90a\n.extern .global .b32 elsewhere;\n.entry k() { ret; }";
    let list = inventory(&Module::parse(elsewhere).unwrap());
    assert_eq!(list.problems.len(), 1, "{:?}", list.problems);
}

/// Instructions of the fifth-generation tensor core; loads are added by their register counts.
const TENSOR: &str = "
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 512; tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r1], %r2;
tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%d1]; tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1];
tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r1], %h1;
tcgen05.cp.cta_group::1.32x128b.warpx4 [%r1], %d1; tcgen05.cp.cta_group::2.32x128b.warpx4 [%r1+4], %d1;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, 512; tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r1, %r2;
tcgen05.fence::after_thread_sync; tcgen05.fence::before_thread_sync;
tcgen05.mma.cta_group::1.kind::f16 [%r1], %d1, %d2, %r2, %p1; tcgen05.mma.cta_group::2.kind::f16 [%r1], %d1, %d2, %r2, %p1;
tcgen05.mma.cta_group::1.kind::f16 [%r1], %d1, %d2, %r2, {%r1, %r2, %r3, %r4}, %p1;
tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16 [%r1], %d1, %d2, %r2, [%r3], [%r4], %p1;
tcgen05.mma.cta_group::2.kind::mxf4nvf4.block_scale.block16 [%r1], %d1, %d2, %r2, [%r3], [%r4], %p1;
tcgen05.mma.cta_group::2.kind::mxf4nvf4.block_scale.scale_vec::4X [%r1], %d1, %d2, %r2, [%r3], [%r4], %p1;
tcgen05.mma.cta_group::2.kind::mxf8f6f4.block_scale.scale_vec::1X [%r1], %d1, %d2, %r2, [%r3], [%r4], %p1;
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned; tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;
tcgen05.st.sync.aligned.16x32bx2.x1.b32 [%r1], 4, %r2; tcgen05.ld.sync.aligned.32x32b.x2.pack::16b.b32 {%r1, %r2}, [%r3];
tcgen05.wait::ld.sync.aligned; tcgen05.wait::st.sync.aligned;";

/// The tensor memory's instructions, with the loads, whose registers are too many to write out.
fn tensor() -> String {
    let mut source = TENSOR.to_string();
    for (shape, registers) in [
        ("16x256b.x2", 8),
        ("16x256b.x4", 16),
        ("16x256b.x8", 32),
        ("16x256b.x16", 64),
        ("16x256b.x32", 128),
        ("32x32b.x8", 8),
        ("32x32b.x16", 16),
        ("32x32b.x128", 128),
    ] {
        let list = vec!["%r2"; registers].join(", ");
        source += &format!("\ntcgen05.ld.sync.aligned.{shape}.b32 {{{list}}}, [%r1];");
    }
    source
}
