//! One line of disassembly.

/// An instruction, as far as control flow and counting need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    pub address: u32,
    /// The opcode with its modifiers: LDG.E.128.CONSTANT.
    pub opcode: String,
    /// Whether the instruction may be skipped, or may not jump.
    pub conditional: bool,
    /// Address that a branch or call goes to.
    pub target: Option<u32>,
}

impl Instruction {
    /// Reads "/*0010*/  @!P0 LDG.E.128.CONSTANT R4, [R2.64] ; /* 0x... */".
    pub fn parse(line: &str) -> Option<Self> {
        let (address, rest) = line.trim().strip_prefix("/*")?.split_once("*/")?;
        // The second line of an instruction is only its encoding.
        let address = u32::from_str_radix(address, 16).ok()?;
        let text = rest.split("/*").next()?.trim().trim_end_matches(';').trim();
        let (guard, text) = match text.strip_prefix('@') {
            Some(text) => {
                let (guard, text) = text.split_once(char::is_whitespace)?;
                (guard != "PT", text.trim())
            }
            None => (false, text),
        };
        let (opcode, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        if !opcode.starts_with(|first: char| first.is_ascii_uppercase()) {
            return None;
        }
        // nvcc also leaves a loop by a call that nothing returns from.
        let is_branch = matches!(opcode.split('.').next(), Some("BRA" | "CALL"));
        let mut operands: Vec<&str> = operands.split(',').map(str::trim).collect();
        let target = match operands.pop() {
            Some(last) if is_branch => hexadecimal(last),
            _ => None,
        };
        // `BRA.U UP0, 0x10` and `BRA P0, 0x10` have their condition among the operands.
        let conditional = guard || is_branch && !operands.is_empty();
        Some(Self {
            address,
            opcode: opcode.to_owned(),
            conditional,
            target,
        })
    }

    /// Without modifiers: LDG.
    pub fn name(&self) -> &str {
        self.opcode.split('.').next().unwrap_or("")
    }

    pub fn has_modifier(&self, modifier: &str) -> bool {
        self.opcode.split('.').skip(1).any(|part| part == modifier)
    }

    /// Bits that a load or store moves for a thread.
    pub fn width(&self) -> u32 {
        if self.name() == "LDSM" {
            // Matrices of eight by eight 16-bit elements: 32 bits a thread of each.
            let matrices = [("4", 4), ("2", 2)];
            let found = matrices.iter().find(|(name, _)| self.has_modifier(name));
            return 32 * found.map_or(1, |&(_, matrices)| matrices);
        }
        let widths = [
            ("256", 256),
            ("128", 128),
            ("64", 64),
            ("U16", 16),
            ("S16", 16),
            ("U8", 8),
            ("S8", 8),
        ];
        let found = widths.iter().find(|(name, _)| self.has_modifier(name));
        found.map_or(32, |&(_, bits)| bits)
    }
}

fn hexadecimal(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_stands_in_a_line() {
        let cases = [
            (
                "/*0010*/ @!P0 LDG.E.128 R4, [R2.64] ; /* 0x1 */",
                "LDG.E.128",
                true,
                None,
            ),
            ("/*0020*/ EXIT;  /* 0x1 */", "EXIT", false, None),
            (
                "/*0030*/ @!P2 BRA 0x1f20 ; /* 0x1 */",
                "BRA",
                true,
                Some(0x1f20),
            ),
            ("/*0040*/ BRA 0x40;", "BRA", false, Some(0x40)),
            (
                "/*0050*/ BRA.U !UP0, 0x8e0 ; /* 0x1 */",
                "BRA.U",
                true,
                Some(0x8e0),
            ),
            (
                "/*0060*/ BRA.DIV UR4, 0x3d80 ;",
                "BRA.DIV",
                true,
                Some(0x3d80),
            ),
            ("/*0070*/ BSSY B0, 0x16b0 ;", "BSSY", false, None),
            (
                "/*0080*/ @!P1 CALL.REL.NOINC 0x58f0 ;",
                "CALL.REL.NOINC",
                true,
                Some(0x58f0),
            ),
        ];
        for (line, opcode, conditional, target) in cases {
            let found = Instruction::parse(line).unwrap();
            let seen = (found.opcode.as_str(), found.conditional, found.target);
            assert_eq!(seen, (opcode, conditional, target), "{line}");
        }
        assert_eq!(Instruction::parse("   /* 0x000fe20000000800 */"), None);
        assert_eq!(Instruction::parse(".headerflags @\"EF\""), None);
    }

    #[test]
    fn widths() {
        let width = |opcode: &str| {
            Instruction::parse(&format!("/*00*/ {opcode} R0 ;"))
                .unwrap()
                .width()
        };
        assert_eq!(width("LDG.E.NA.LTC256B.128.CONSTANT"), 128);
        assert_eq!(width("LDG.E.U16.CONSTANT"), 16);
        assert_eq!(width("LDS"), 32);
        assert_eq!(width("LDG.E.ENL2.256"), 256);
        assert_eq!(width("LDSM.16.M88.4"), 128);
        assert_eq!(width("LDSM.16.MT88.2"), 64);
        assert_eq!(width("LDSM.16.M88"), 32);
    }
}
