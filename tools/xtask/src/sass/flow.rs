//! Loops of a kernel, from its branches.

use sass::Instruction;
use std::collections::{BTreeSet, HashMap};

/// A natural loop: everything that leads from its head back to its head.
#[derive(Clone, Debug)]
pub(crate) struct Loop {
    /// Indices of instructions.
    pub(crate) body: BTreeSet<usize>,
}

/// Every loop, those with the same head as one. A head is what every way from the start into the loop goes through;
/// it may stand anywhere among the loop's instructions. Not counted are jumps back into the middle of code that can be
/// reached without them: the compiler moves code it thinks unlikely behind the end.
pub(crate) fn loops(code: &[Instruction]) -> Vec<Loop> {
    let next = successors(code);
    let reachable = reach(&next, None);
    let mut before = vec![Vec::new(); code.len()];
    for (from, targets) in next.iter().enumerate() {
        if reachable.contains(&from) {
            targets.iter().for_each(|&to| before[to].push(from));
        }
    }
    let mut loops = Vec::new();
    for (head, from) in before.iter().enumerate() {
        // Only an instruction where ways meet can be reached from inside a loop.
        if from.len() < 2 && !from.iter().any(|&from| from >= head) {
            continue;
        }
        let past = reach(&next, Some(head));
        let open = from.iter().copied().filter(|at| !past.contains(at));
        let mut open: Vec<usize> = open.collect();
        if open.is_empty() {
            continue;
        }
        let mut body = BTreeSet::from([head]);
        while let Some(at) = open.pop() {
            if body.insert(at) {
                open.extend(&before[at]);
            }
        }
        loops.push(Loop { body });
    }
    loops
}

/// The smallest loop with at least half of the `characteristic` instructions that any loop has, without
/// the loops in it that have none: waits at barriers.
pub(crate) fn main_loop(
    code: &[Instruction],
    characteristic: impl Fn(&Instruction) -> bool,
) -> Option<Vec<&Instruction>> {
    let loops = loops(code);
    let count = |body: &BTreeSet<usize>| {
        let found = body.iter().filter(|&&at| characteristic(&code[at]));
        found.count()
    };
    let most = loops.iter().map(|l| count(&l.body)).max();
    let most = most.filter(|&most| most > 0)?;
    let main = loops.iter().filter(|l| count(&l.body) * 2 >= most);
    let main = main.min_by_key(|l| l.body.len())?;
    let mut body = main.body.clone();
    for inner in &loops {
        if inner.body.len() < main.body.len()
            && inner.body.is_subset(&main.body)
            && count(&inner.body) == 0
        {
            body.retain(|at| !inner.body.contains(at));
        }
    }
    Some(body.into_iter().map(|at| &code[at]).collect())
}

fn successors(code: &[Instruction]) -> Vec<Vec<usize>> {
    let at: HashMap<u32, usize> = code
        .iter()
        .enumerate()
        .map(|(index, instruction)| (instruction.address, index))
        .collect();
    let of = |(index, instruction): (usize, &Instruction)| {
        let mut next = Vec::new();
        let ends = matches!(instruction.name(), "BRA" | "EXIT" | "RET" | "BRX" | "JMX");
        if (!ends || instruction.conditional) && index + 1 < code.len() {
            next.push(index + 1);
        }
        // BRA.DIV goes to what is done where a warp has diverged, which these kernels' warps have not.
        if let Some(target) = instruction.target
            && !instruction.has_modifier("DIV")
        {
            next.extend(at.get(&target));
        }
        next
    };
    code.iter().enumerate().map(of).collect()
}

/// Instructions that are reached from the start, and not through `without`.
fn reach(next: &[Vec<usize>], without: Option<usize>) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut open = vec![0];
    while let Some(at) = open.pop() {
        if at < next.len() && Some(at) != without && reached.insert(at) {
            open.extend(&next[at]);
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loop of tiles around a loop of steps, which waits at a barrier; the wait's slow part stands
    /// behind the end and jumps back.
    const NESTED: &str = "
        /*0000*/ MOV R1, c[0x0][0x28] ;
        /*0010*/ IADD3 R2, R2, 0x1, RZ ;
        /*0020*/ SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [R5+URZ], R4 ;
        /*0030*/ @!P1 BRA 0xc0 ;
        /*0040*/ BRA.DIV UR4, 0xf0 ;
        /*0050*/ IDP.4A.S8.S8 R3, R4, R5, R3 ;
        /*0060*/ @P3 PRMT R3, R4, R5, R3 ;
        /*0070*/ IDP.4A.S8.S8 R3, R4, R5, R3 ;
        /*0080*/ @!P2 BRA 0x20 ;
        /*0090*/ FADD R3, R3, R4 ;
        /*00a0*/ @P0 BRA 0x10 ;
        /*00b0*/ EXIT ;
        /*00c0*/ SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [R5+URZ], R4 ;
        /*00d0*/ @!P1 BRA 0xc0 ;
        /*00e0*/ BRA 0x40 ;
        /*00f0*/ WARPSYNC.ALL ;
        /*0100*/ BRA 0x50 ;
        /*0110*/ BRA 0x110 ;
";

    fn code(text: &str) -> Vec<Instruction> {
        text.lines().filter_map(Instruction::parse).collect()
    }

    fn is_dot(instruction: &Instruction) -> bool {
        instruction.name() == "IDP"
    }

    #[test]
    fn finds_natural_loops_only() {
        let code = code(NESTED);
        let found: Vec<usize> = loops(&code).iter().map(|l| l.body.len()).collect();
        // Tiles: all of it but the first instruction, EXIT, and what follows a diverged warp. Steps:
        // 0x20..0x80 and the slow wait. The slow wait.
        assert_eq!(found, [13, 10, 2]);
    }

    /// A loop that is entered at its test, which stands behind what it repeats, and goes on to the first instruction of
    /// that by falling through a jump.
    const ENTERED_AT_ITS_TEST: &str = "
        /*0000*/ BRA 0x30 ;
        /*0010*/ IDP.4A.S8.S8 R3, R4, R5, R3 ;
        /*0020*/ IADD3 R2, R2, 0x1, RZ ;
        /*0030*/ ISETP.NE.AND P0, PT, R2, RZ, PT ;
        /*0040*/ @P0 BRA 0x10 ;
        /*0050*/ EXIT ;
";

    #[test]
    fn a_head_may_stand_anywhere() {
        let code = code(ENTERED_AT_ITS_TEST);
        let main = main_loop(&code, is_dot).unwrap();
        let addresses: Vec<u32> = main.iter().map(|i| i.address).collect();
        assert_eq!(addresses, [0x10, 0x20, 0x30, 0x40]);
    }

    #[test]
    fn the_main_loop_is_the_inner_one_without_its_waits() {
        let code = code(NESTED);
        let main = main_loop(&code, is_dot).unwrap();
        let addresses: Vec<u32> = main.iter().map(|i| i.address).collect();
        assert_eq!(addresses, [0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0xe0]);
    }

    #[test]
    fn straight_code_has_no_main_loop() {
        let code =
            code("/*0000*/ IDP.4A.S8.S8 R3, R4, R5, R3 ;\n/*0010*/ EXIT ;\n/*0020*/ BRA 0x20 ;");
        assert!(main_loop(&code, is_dot).is_none());
    }
}
