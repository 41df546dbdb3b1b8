//! Choices that a thread made lately. A call that is not prepared asks for the same choice each time, and only the
//! first time is it worked out. A choice depends on nothing but what is compared here. Nothing is allocated.

use std::cell::RefCell;
use std::ptr;

use super::measured::Measurements;
use super::options::Reason;
use super::rank::of_model;
use super::select::Asked;
use crate::error::Result;
use crate::kernel::{Checked, Job};

/// Choices that are kept: more than the layers of a model have shapes.
const MOST: usize = 32;

#[derive(Clone, Copy)]
struct Made {
    /// The model of the job's GPU, by the built-in table of it.
    model: Option<*const Measurements>,
    asked: Asked,
    checked: Checked,
    reason: Reason,
}

/// The oldest one gives its place to the next.
struct Lately {
    made: [Option<Made>; MOST],
    next: usize,
}

thread_local! {
    static LATELY: RefCell<Lately> = const { RefCell::new(Lately { made: [None; MOST], next: 0 }) };
}

/// The choice that was made lately for a job, or the one that `choose` makes now. `choose` asks no tables but the
/// built-in ones.
pub(super) fn lately(
    asked: &Asked,
    job: &Job<'_>,
    choose: impl FnOnce() -> Result<(Checked, Reason)>,
) -> Result<(Checked, Reason)> {
    let model = of_model(job.gpu).map(ptr::from_ref);
    let is_it =
        |made: &&Made| made.checked.is_for(job) && made.asked == *asked && made.model == model;
    let known = LATELY.with_borrow(|lately| {
        let made = lately.made.iter().flatten().find(is_it);
        made.map(|made| (made.checked, made.reason))
    });
    if let Some(known) = known {
        return Ok(known);
    }
    let (checked, reason) = choose()?;
    LATELY.with_borrow_mut(|lately| {
        lately.made[lately.next] = Some(Made {
            model,
            asked: *asked,
            checked,
            reason,
        });
        lately.next = (lately.next + 1) % MOST;
    });
    Ok((checked, reason))
}
