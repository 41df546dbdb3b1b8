//! 8x8 matrices of 16-bit elements between shared memory and the registers of a warp.
//!
//! Lane `l` holds elements `2 * (l % 4)` and the next one of row `l / 4`; transposed, of that
//! column. Lanes `8 * i` to `8 * i + 7` give the addresses of the rows of matrix `i`.

use super::Ctx;
use super::machine::{Machine, Tried, sync_fault};
use super::transfer::refuse;
use super::warp::Warp;
use crate::memory::Space;
use crate::program::{Addr, Lanes, Op};

/// Row and column of a lane's element.
fn element(lane: usize, half: usize, transposed: bool) -> (usize, usize) {
    let (major, minor) = (lane / 4, lane % 4 * 2 + half);
    if transposed {
        (minor, major)
    } else {
        (major, minor)
    }
}

type Matrix = [[u16; 8]; 8];

fn gather(m: &Matrix, transposed: bool) -> Lanes {
    std::array::from_fn(|lane| {
        let at = |half| {
            let (r, c) = element(lane, half, transposed);
            u64::from(m[r][c])
        };
        at(0) | at(1) << 16
    })
}

fn scatter(v: &Lanes, transposed: bool) -> Matrix {
    let mut m = [[0; 8]; 8];
    for (lane, v) in v.iter().enumerate() {
        for half in 0..2 {
            let (r, c) = element(lane, half, transposed);
            m[r][c] = (v >> (16 * half)) as u16;
        }
    }
    m
}

impl Machine<'_> {
    pub(super) fn matrix(&mut self, c: &Ctx<'_>, w: &mut Warp, op: &Op) -> Tried<()> {
        if c.active != u32::MAX {
            return Err(sync_fault("matrix instructions need all 32 lanes"));
        }
        match op {
            Op::MovMatrix { d, a } => {
                let out = gather(&scatter(w.get(c.program, *a), false), true);
                w.set(c.program, *d, &out, c.active);
            }
            Op::LdMatrix {
                d,
                addr,
                transposed,
            } => {
                let base = *w.get(c.program, addr.base);
                let mut out = Vec::with_capacity(d.len());
                for i in 0..d.len() {
                    let mut m = [[0; 8]; 8];
                    for (r, row) in m.iter_mut().enumerate() {
                        let mut bytes = [0; 16];
                        self.row(c, w, addr, &base, 8 * i + r, Some(&mut bytes), &[])?;
                        for (e, b) in row.iter_mut().zip(bytes.chunks_exact(2)) {
                            *e = u16::from_le_bytes([b[0], b[1]]);
                        }
                    }
                    out.push(gather(&m, *transposed));
                }
                for (d, v) in d.iter().zip(&out) {
                    if let Some(d) = d {
                        w.set(c.program, *d, v, c.active);
                    }
                }
                self.undefine_loaded(c, w, (d, addr, &base), |row, i| {
                    match (row as usize / 8 == i, transposed) {
                        (false, _) => 0,
                        (_, true) => u32::MAX,
                        (_, false) => 0xf << (row % 8 * 4),
                    }
                });
            }
            Op::StMatrix {
                s,
                addr,
                transposed,
            } => {
                let base = *w.get(c.program, addr.base);
                for (i, s) in s.iter().enumerate() {
                    let m = scatter(w.get(c.program, *s), *transposed);
                    for (r, row) in m.iter().enumerate() {
                        let bytes: Vec<u8> = row.iter().flat_map(|e| e.to_le_bytes()).collect();
                        self.row(c, w, addr, &base, 8 * i + r, None, &bytes)?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Reads or writes the 16 bytes of one row, whose address `lane` gives.
    #[allow(clippy::too_many_arguments)]
    fn row(
        &mut self,
        c: &Ctx<'_>,
        w: &Warp,
        addr: &Addr,
        base: &Lanes,
        lane: usize,
        read: Option<&mut [u8; 16]>,
        write: &[u8],
    ) -> Tried<()> {
        let at = self.locate(c, addr, base[lane], lane as u32)?;
        if at.space != Space::Shared {
            let message = format!("matrix in {} memory", at.space.name());
            return Err(refuse(lane as u32, at.address, message));
        }
        let actor = c.actor(self, w, lane as u32);
        match read {
            Some(out) => self.read(actor, at, 16, out),
            None => self.write(actor, at, 16, write),
        }
    }
}
