//! Special registers by name.

use super::Special;

/// Slots of the predicates that never change.
pub(super) const TRUE: u32 = 0;
pub(super) const FALSE: u32 = 1;
/// Slot that holds `%is_explicit_cluster`.
pub(crate) const EXPLICIT_CLUSTER: u32 = 2;

/// Special registers that hold one value for a thread's whole life.
pub(super) fn special(name: &str) -> Option<Special> {
    let axis = |s: &str| match s {
        "x" => Some(0),
        "y" => Some(1),
        "z" => Some(2),
        _ => None,
    };
    let name = name.strip_prefix('%')?;
    if let Some((base, a)) = name.split_once('.') {
        let a = axis(a)?;
        return Some(match base {
            "tid" => Special::Tid(a),
            "ntid" => Special::Ntid(a),
            "ctaid" => Special::Ctaid(a),
            "nctaid" => Special::Nctaid(a),
            "clusterid" => Special::ClusterId(a),
            "nclusterid" => Special::NClusterId(a),
            "cluster_ctaid" => Special::ClusterCtaid(a),
            "cluster_nctaid" => Special::ClusterNctaid(a),
            _ => return None,
        });
    }
    Some(match name {
        "laneid" => Special::LaneId,
        "warpid" => Special::WarpId,
        "nwarpid" => Special::NWarpId,
        "lanemask_eq" => Special::LaneMaskEq,
        "lanemask_le" => Special::LaneMaskLe,
        "lanemask_lt" => Special::LaneMaskLt,
        "lanemask_ge" => Special::LaneMaskGe,
        "lanemask_gt" => Special::LaneMaskGt,
        "cluster_ctarank" => Special::ClusterCtaRank,
        "cluster_nctarank" => Special::ClusterNctaRank,
        "smid" => Special::SmId,
        "nsmid" => Special::NSmId,
        "gridid" => Special::GridId,
        "dynamic_smem_size" => Special::DynamicSharedSize,
        "total_smem_size" => Special::TotalSharedSize,
        _ => return None,
    })
}
