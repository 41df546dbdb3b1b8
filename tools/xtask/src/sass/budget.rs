//! Rules for the machine code, in tools/xtask/sass-budget.toml.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::sass::dump::Kernel;
use crate::sass::figure_budget::FigureBudget;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Budget {
    /// Architectures that must each be there, and no other, except for those that follow.
    pub(crate) archs: Vec<String>,
    /// Units that are compiled besides.
    #[serde(default)]
    pub(crate) alone: Vec<Alone>,
    /// Instructions that may not be in the code of a kernel whose family does not allow them.
    forbid: Vec<String>,
    #[serde(rename = "family")]
    families: Vec<Family>,
}

/// A unit that is also compiled for architectures by themselves. Only the instructions, registers and the stack of its
/// kernels are looked at: no estimate is made for their GPUs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Alone {
    pub(crate) unit: String,
    pub(crate) archs: Vec<String>,
}

/// Rules that several kernels have in common, and a rule for each of them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Family {
    /// The only architectures of the family; without them, every one.
    archs: Option<Vec<String>>,
    /// Lists of instructions, one of each of which must be in the code. `LDG.128` means LDG with the modifier 128,
    /// whatever its others.
    #[serde(default)]
    require: Vec<Vec<String>>,
    /// Instructions that may not be in the code.
    #[serde(default)]
    forbid: Vec<String>,
    /// Instructions that may be in the code, whatever the budget forbids all.
    #[serde(default)]
    allow: Vec<String>,
    /// Instructions that must each be in the main loop.
    #[serde(default)]
    main_loop: Vec<String>,
    #[serde(rename = "kernels")]
    rules: Vec<Rule>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    /// Parts of the kernel's symbol, in this order, with `*` between them.
    #[serde(rename = "match")]
    pattern: String,
    max_registers: u32,
    /// Bytes of local memory: more than none means spilled registers or arrays out of registers.
    #[serde(default)]
    max_stack: u32,
    max_instructions: Option<u32>,
    /// Figures that the main loop and the config must give.
    figures: Option<FigureBudget>,
}

/// One thing that is not as it must be.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding {
    pub(crate) arch: Option<String>,
    pub(crate) kernel: Option<String>,
    pub(crate) problem: String,
}

impl Budget {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        toml::from_str(text).context("not a budget")
    }

    pub(crate) fn examine(&self, kernels: &[Kernel]) -> Vec<Finding> {
        let mut findings = self.examine_archs(kernels);
        let rules = self.families.iter();
        let rules: Vec<(&Family, &Rule)> = rules
            .flat_map(|family| family.rules.iter().map(move |rule| (family, rule)))
            .collect();
        let mut used = BTreeSet::new();
        for kernel in kernels {
            let mut say = |problem: String| {
                findings.push(Finding {
                    arch: Some(kernel.arch.clone()),
                    kernel: Some(kernel.symbol.clone()),
                    problem,
                });
            };
            // The first that matches is the kernel's rule.
            let found = rules.iter().position(|(family, rule)| {
                family.is_for(&kernel.arch) && has_parts(&kernel.symbol, &rule.pattern)
            });
            match found {
                Some(index) => {
                    used.insert(index);
                    let (family, rule) = rules[index];
                    rule.examine(kernel, &mut say);
                    family.examine(kernel, &self.forbid, &mut say);
                    if self.archs.contains(&kernel.arch) {
                        rule.examine_figures(kernel, &mut say);
                        family.examine_main_loop(kernel, &mut say);
                    }
                }
                None => say("no rule of the budget matches it".into()),
            }
        }
        // A rule for nothing is a kernel that was renamed, and is no longer checked as meant.
        for (index, (family, rule)) in rules.iter().enumerate() {
            let could_apply = self.archs.iter().any(|arch| family.is_for(arch));
            if !used.contains(&index) && could_apply {
                findings.push(Finding {
                    arch: None,
                    kernel: None,
                    problem: format!("the rule for {:?} matches no kernel", rule.pattern),
                });
            }
        }
        findings
    }

    fn examine_archs(&self, kernels: &[Kernel]) -> Vec<Finding> {
        let present: BTreeSet<&str> = kernels.iter().map(|kernel| kernel.arch.as_str()).collect();
        let alone = self.alone.iter().flat_map(|alone| &alone.archs);
        let expected: BTreeSet<&str> = self.archs.iter().chain(alone).map(String::as_str).collect();
        let finding = |arch: &&str, problem: &str| Finding {
            arch: Some((*arch).to_owned()),
            kernel: None,
            problem: problem.to_owned(),
        };
        let missing = expected.difference(&present);
        let other = present.difference(&expected);
        missing
            .map(|arch| finding(arch, "no kernel is compiled for it"))
            .chain(other.map(|arch| finding(arch, "not in the budget's list of architectures")))
            .collect()
    }
}

impl Family {
    fn is_for(&self, arch: &String) -> bool {
        self.archs.as_ref().is_none_or(|own| own.contains(arch))
    }

    fn examine(&self, kernel: &Kernel, forbidden: &[String], say: &mut impl FnMut(String)) {
        for alternatives in &self.require {
            if !alternatives
                .iter()
                .any(|pattern| has(&kernel.opcodes, pattern))
            {
                say(format!("has none of {}", alternatives.join(", ")));
            }
        }
        let not_allowed = |pattern: &&String| !self.allow.contains(pattern);
        lacks_all(kernel, forbidden.iter().filter(not_allowed), say);
        lacks_all(kernel, self.forbid.iter(), say);
    }

    fn examine_main_loop(&self, kernel: &Kernel, say: &mut impl FnMut(String)) {
        let main = kernel.figures.as_ref().and_then(|all| all.main.as_ref());
        for pattern in &self.main_loop {
            if !main.is_some_and(|main| has(&main.opcodes, pattern)) {
                say(format!("its main loop has no {pattern}"));
            }
        }
    }
}

impl Rule {
    fn examine(&self, kernel: &Kernel, say: &mut impl FnMut(String)) {
        let mut limit = |what: &str, value: u32, limit: u32| {
            if value > limit {
                say(format!("{what}: {value}, at most {limit} allowed"));
            }
        };
        limit("registers", kernel.registers, self.max_registers);
        limit("bytes of stack (spills)", kernel.stack, self.max_stack);
        limit("bytes of local memory", kernel.local, self.max_stack);
        if let Some(most) = self.max_instructions {
            limit("instructions", kernel.instructions(), most);
        }
    }

    fn examine_figures(&self, kernel: &Kernel, say: &mut impl FnMut(String)) {
        if let Some(figures) = &self.figures {
            figures.examine(kernel.figures.as_ref(), kernel.estimate.as_ref(), say);
        }
    }
}

fn lacks_all<'a>(
    kernel: &Kernel,
    forbidden: impl Iterator<Item = &'a String>,
    say: &mut impl FnMut(String),
) {
    let there = forbidden.filter(|pattern| has(&kernel.opcodes, pattern));
    there.for_each(|pattern| say(format!("has {pattern}")));
}

fn has(opcodes: &BTreeMap<String, u32>, pattern: &str) -> bool {
    opcodes.keys().any(|opcode| is_form_of(opcode, pattern))
}

pub(crate) fn has_parts(symbol: &str, pattern: &str) -> bool {
    let mut rest = symbol;
    pattern.split('*').all(|part| {
        let found = rest.split_once(part);
        rest = found.map_or("", |(_, after)| after);
        found.is_some()
    })
}

/// Whether an opcode is the pattern's instruction with at least the pattern's modifiers.
pub(crate) fn is_form_of(opcode: &str, pattern: &str) -> bool {
    let mut wanted = pattern.split('.');
    let mut parts = opcode.split('.');
    let same_instruction = wanted.next() == parts.next();
    let modifiers: Vec<&str> = parts.collect();
    same_instruction && wanted.all(|modifier| modifiers.contains(&modifier))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sass::figures::{Figures, MainLoop};
    use crate::testing::contains;

    const TEXT: &str = r#"
archs = ["80", "90a"]
forbid = ["ATOMG"]

[[family]]
require = [["LDG.128", "LDG.256"]]
kernels = [{ match = "gemv", max_registers = 64, max_instructions = 3 }]

[[family]]
archs = ["90a"]
forbid = ["STL"]
kernels = [{ match = "relayout", max_registers = 32 }]
"#;

    fn kernel(symbol: &str, arch: &str, opcodes: &[&str]) -> Kernel {
        Kernel::from(sass::Function {
            symbol: symbol.into(),
            arch: arch.into(),
            registers: 32,
            opcodes: opcodes.iter().map(|name| ((*name).to_owned(), 1)).collect(),
            ..sass::Function::default()
        })
    }

    fn good() -> Vec<Kernel> {
        vec![
            kernel("gemv_n1", "80", &["LDG.E.128.CONSTANT", "EXIT"]),
            kernel("gemv_n1", "90a", &["LDG.E.ENL2.256", "EXIT"]),
            kernel("relayout", "90a", &["EXIT"]),
        ]
    }

    fn adds(kernel: &mut Kernel, opcode: &str, count: u32) {
        kernel.opcodes.insert(opcode.into(), count);
    }

    /// The findings of a budget.
    fn found(budget: &str, kernels: &[Kernel]) -> Vec<String> {
        let findings = Budget::parse(budget).unwrap().examine(kernels);
        findings
            .into_iter()
            .map(|finding| finding.problem)
            .collect()
    }

    fn problems(kernels: &[Kernel]) -> String {
        found(TEXT, kernels).join("; ")
    }

    #[test]
    fn good_code_passes() {
        assert_eq!(problems(&good()), "");
    }

    #[test]
    fn each_fault_is_found() {
        type Fault = fn(&mut Vec<Kernel>);
        let faults: [(&str, Fault); 10] = [
            ("registers: 65", |all| all[0].registers = 65),
            ("spills", |all| all[0].stack = 8),
            ("local memory", |all| all[0].local = 8),
            ("has none of LDG.128, LDG.256", |all| {
                all[0].opcodes.retain(|name, _| name == "EXIT")
            }),
            ("has ATOMG", |all| adds(&mut all[0], "ATOMG.E.ADD", 1)),
            ("has STL", |all| adds(&mut all[2], "STL.64", 1)),
            ("has ATOMG", |all| adds(&mut all[2], "ATOMG.E.ADD", 1)),
            ("instructions: 5", |all| adds(&mut all[0], "FFMA", 3)),
            ("no rule", |all| all.push(kernel("new", "80", &[]))),
            ("\"relayout\" matches no kernel", |all| drop(all.pop())),
        ];
        for (expected, fault) in faults {
            let mut kernels = good();
            fault(&mut kernels);
            let found = problems(&kernels);
            assert!(found.contains(expected), "{expected}: {found:?}");
        }
    }

    #[test]
    fn a_family_may_be_allowed_what_others_are_not() {
        let text = TEXT.to_owned() + "allow = [\"ATOMG\"]\n";
        let mut kernels = good();
        adds(&mut kernels[2], "ATOMG.E.ADD", 1);
        assert_eq!(found(&text, &kernels), [""; 0]);
        adds(&mut kernels[2], "STL.64", 1);
        assert_eq!(found(&text, &kernels).len(), 1);
    }

    #[test]
    fn architectures_must_be_the_listed_ones() {
        let mut kernels = good();
        kernels[0].arch = "120a".into();
        let parts = ["no kernel is compiled for it", "not in the budget's list"];
        contains(&problems(&kernels), &parts);
    }

    /// Units alone are looked at like the other kernels, except for their figures, and must be there.
    #[test]
    fn units_alone() {
        let alone = "[[alone]]\nunit = \"relayout\"\narchs = [\"90\"]\n";
        let (one, both) = ("[\"90a\"]\nforbid", "[\"90a\", \"90\"]\nforbid");
        let text = TEXT.replace(one, both) + alone;
        let problems = |kernels: &[Kernel]| found(&text, kernels);
        let mut kernels = good();
        assert_eq!(problems(&kernels), ["no kernel is compiled for it"]);
        kernels.push(kernel("relayout", "90", &["EXIT"]));
        assert_eq!(problems(&kernels), [""; 0]);
        adds(&mut kernels[3], "STL", 1);
        assert_eq!(problems(&kernels), ["has STL"]);
    }

    #[test]
    fn opcode_patterns() {
        assert!(is_form_of("LDG.E.128.CONSTANT", "LDG.128"));
        assert!(is_form_of("LDG.E.128.CONSTANT", "LDG"));
        assert!(!is_form_of("LDG.E.64", "LDG.128"));
        assert!(!is_form_of("LDGSTS.E.128", "LDG.128"));
    }

    #[test]
    fn symbol_patterns() {
        let symbol = "gemv_ring_nvfp4_c2_r1_l1";
        for pattern in ["gemv", "gemv*r1", "gemv*ring*c2*_r1"] {
            assert!(has_parts(symbol, pattern), "{pattern}");
        }
        for pattern in ["relayout", "c2*gemv", "gemv*c2*c2"] {
            assert!(!has_parts(symbol, pattern), "{pattern}");
        }
    }

    #[test]
    fn figures_are_examined() {
        let more = "registers = 32, figures.min_ctas_per_sm = 2";
        let text = TEXT.replace("registers = 32", more);
        let findings = Budget::parse(&text).unwrap().examine(&good());
        let found: Vec<_> = findings.iter().map(|f| f.kernel.as_deref()).collect();
        assert_eq!(found, [Some("relayout")], "it is of no known family");
    }

    #[test]
    fn main_loops_are_examined() {
        let text = TEXT.to_owned() + "main_loop = [\"LDG.256\"]\n";
        let mut kernels = good();
        let problem = "its main loop has no LDG.256";
        assert_eq!(found(&text, &kernels), [problem]);
        let mut main = MainLoop::default();
        main.opcodes.insert("LDG.E.NA.256.CONSTANT".into(), 1);
        kernels[2].figures = Some(Figures {
            main: Some(main),
            ..Figures::default()
        });
        assert_eq!(found(&text, &kernels), [""; 0]);
    }

    #[test]
    fn the_committed_budget_can_be_read() {
        let text = include_str!("../../sass-budget.toml");
        Budget::parse(text).unwrap();
    }
}
