//! A `wgmma` that reads B with another swizzle than TMA wrote it with is reported.

use ptx_sim::models::swizzle::Swizzle;
use ptx_sim::models::tensor_map::{
    DataType, Interleave, L2Promotion, OobFill, TensorMap, TensorMapArgs,
};
use ptx_sim::{Launch, Module, Options, Sim};

/// Bytes of B in shared memory: 8 columns, 64 of K.
const BYTES: usize = 8 * 128;

/// Loads B through the map and multiplies with a descriptor of this mode.
fn ptx(mode: u64) -> String {
    format!(
        ".version 9.0\n.target sm_90a\n.address_size 64\n\
         .visible .entry k(.param .align 64 .b8 map[128]) {{\n\
         .reg .pred %p<4>; .reg .b32 %r<9>; .reg .b32 %x<4>; .reg .b64 %d<9>;\n\
         .shared .align 1024 .b8 b[{BYTES}]; .shared .align 8 .b64 bar;\n\
         mov.b64 %d1, map; cvta.param.u64 %d1, %d1; mov.u32 %r1, %tid.x; mov.u32 %r2, b; mov.u32 %r3, bar;\n\
         mov.u32 %r4, 0; setp.ne.u32 %p1, %r1, 0; @%p1 bra READY;\n\
         mbarrier.init.shared::cta.b64 [%r3], 1; fence.proxy.async.shared::cta;\n\
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {BYTES};\n\
         cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r2], [%d1, {{%r4, %r4}}], [%r3];\n\
         READY: bar.sync 0;\n\
         WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0; @!%p2 bra WAIT;\n\
         mov.u32 %r5, 0; mov.f32 %x0, 0f00000000; mov.b32 %x1, %x0; mov.b32 %x2, %x0; mov.b32 %x3, %x0;\n\
         shr.u32 %r6, %r2, 4; cvt.u64.u32 %d2, %r6; or.b64 %d2, %d2, {descriptor:#x};\n\
         setp.ne.u32 %p3, %r5, 0; wgmma.fence.sync.aligned;\n\
         wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{%x0, %x1, %x2, %x3}}, {{%r5, %r5, %r5, %r5}}, %d2, %p3, 1, 1, 0;\n\
         wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;\n ret;\n}}\n",
        descriptor = mode << 62 | 64 << 32,
    )
}

/// Warnings of a run.
fn warnings(swizzle: Swizzle, mode: u64) -> Vec<String> {
    let mut sim = Sim::new(Module::parse(&ptx(mode)).unwrap());
    let b = sim.upload("b", &[0; BYTES]).unwrap();
    let map = TensorMap::encode(TensorMapArgs {
        data_type: DataType::Uint32,
        global_address: b.address,
        global_dim: vec![32, 8],
        global_strides: vec![128],
        box_dim: vec![32, 8],
        element_strides: vec![1, 1],
        interleave: Interleave::None,
        swizzle,
        l2_promotion: L2Promotion::None,
        oob_fill: OobFill::Zero,
    });
    let launch = Launch::new("k", [1; 3], [128, 1, 1]).tensor_map(map.unwrap());
    let report = sim.run(&launch, &Options::default()).unwrap();
    report.warnings.iter().map(|w| w.to_string()).collect()
}

#[test]
fn another_swizzle_than_tma_wrote() {
    // Mode 1 of a descriptor is 128 bytes.
    assert_eq!(warnings(Swizzle::B128, 1), [""; 0]);
    let found = warnings(Swizzle::None, 1);
    assert_eq!(found.len(), 1, "{found:?}");
    let text = "read with swizzle B128 and was written with None";
    assert!(
        found[0].contains(text) && found[0].contains("cp.async.bulk.tensor"),
        "{found:?}"
    );
}
