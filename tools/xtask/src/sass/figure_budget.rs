//! Limits of a kernel's figures in a rule of the budget.

use serde::Deserialize;

use crate::sass::estimate::Estimate;
use crate::sass::figures::Figures;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FigureBudget {
    /// Lane-instructions of the main loop for one weight and one vector.
    max_instructions_per_mac: Option<f64>,
    /// Bytes of weights for one SM.
    min_bytes_in_flight: Option<u32>,
    min_ctas_per_sm: Option<u32>,
    /// Share of the memory's rate that the estimate allows.
    min_share_of_memory: Option<f64>,
    /// Columns of tensor memory of all CTAs of an SM.
    max_tensor_columns: Option<u32>,
}

impl FigureBudget {
    pub(crate) fn examine(
        &self,
        figures: Option<&Figures>,
        estimate: Option<&Estimate>,
        say: &mut impl FnMut(String),
    ) {
        let Some(figures) = figures else {
            return say(
                "`nvfp4-gemv kernels` does not list it, or gpu.rs does not know its architecture"
                    .into(),
            );
        };
        if let Some(problem) = &figures.problem {
            say(format!("its main loop is not understood: {problem}"));
        }
        let ctas = figures.ctas_per_sm;
        let of_cta = &figures.facts;
        if let (Some(main), Some(most)) = (&figures.main, self.max_instructions_per_mac)
            && main.instructions_per_mac > most
        {
            say(format!(
                "{:.3} instructions a multiply-accumulate in the main loop ({} for {} weights and {} \
                 vectors), at most {most} allowed",
                main.instructions_per_mac, main.instructions, main.weights, main.vectors
            ));
        }
        if let Some(least) = self.min_share_of_memory {
            match estimate {
                Some(estimate) if estimate.share >= least => {}
                Some(estimate) => say(format!(
                    "{} allows {:.2} of the memory's rate on {}, at least {least} needed",
                    estimate.limit, estimate.share, figures.gpu
                )),
                None => say("there is no estimate of its limit".into()),
            }
        }
        if let Some(least) = self.min_bytes_in_flight
            && figures.bytes_in_flight < least
        {
            say(format!(
                "{} bytes in flight on an SM ({ctas} CTAs of {}), at least {least} needed",
                figures.bytes_in_flight, of_cta.cta_bytes_in_flight
            ));
        }
        if let Some(least) = self.min_ctas_per_sm
            && ctas < least
        {
            say(format!(
                "room for {ctas} CTAs on an SM of {}, limited by {}, at least {least} needed",
                figures.gpu, figures.ctas_limited_by
            ));
        }
        // The columns are those of the CTAs that are wanted, not of the CTAs that fit: CTAs that do not fit wait for
        // columns.
        let wanted = of_cta.launched;
        let columns = of_cta.tensor_columns * wanted;
        if let Some(most) = self.max_tensor_columns
            && columns > most
        {
            say(format!(
                "{columns} columns of tensor memory ({wanted} CTAs of {}), at most {most} allowed",
                of_cta.tensor_columns
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sass::catalogue::Facts;
    use crate::sass::figures::MainLoop;
    use crate::sass::gpu::Gpu;

    const TEXT: &str = "
max_instructions_per_mac = 3.0
min_bytes_in_flight = 65536
min_ctas_per_sm = 2
max_tensor_columns = 512
min_share_of_memory = 0.9
";

    /// Figures as of gemv_tcgen05, just within the budget.
    fn figures() -> Figures {
        let gpu = Gpu::of_arch("100f").unwrap();
        Figures {
            gpu: gpu.name,
            facts: Facts {
                launched: 2,
                tensor_columns: 256,
                ..Facts::default()
            },
            ctas_per_sm: 2,
            ctas_limited_by: "shared",
            bytes_in_flight: 64 << 10,
            main: Some(MainLoop {
                instructions_per_mac: 3.0,
                ..MainLoop::default()
            }),
            ..Figures::default()
        }
    }

    #[test]
    fn each_figure_is_held_to_its_limit() {
        type Fault = fn(&mut Figures);
        const ROOM: &str = "room for 1 CTAs on an SM of NVIDIA B200, limited by shared";
        const COLUMNS: &str = "1024 columns of tensor memory";
        const UNKNOWN: &str = "main loop is not understood: none";
        let faults: [(&str, Fault); 6] = [
            ("", |_| {}),
            ("3.010 instructions a multiply-accumulate", |of| {
                of.main.as_mut().unwrap().instructions_per_mac = 3.01;
            }),
            ("65535 bytes in flight on an SM", |of| {
                of.bytes_in_flight -= 1
            }),
            (ROOM, |of| of.ctas_per_sm = 1),
            (COLUMNS, |of| of.facts.tensor_columns = 512),
            (UNKNOWN, |of| of.problem = Some("none".into())),
        ];
        let estimate = |share| Estimate {
            resources: Vec::new(),
            limit: "issue",
            share,
        };
        let budget: FigureBudget = toml::from_str(TEXT).unwrap();
        for (expected, fault) in faults {
            let mut figures = figures();
            fault(&mut figures);
            let mut found = Vec::new();
            let good = estimate(0.9);
            budget.examine(Some(&figures), Some(&good), &mut |p| found.push(p));
            assert_eq!(found.len(), usize::from(!expected.is_empty()), "{found:?}");
            assert!(found.concat().contains(expected), "{expected}: {found:?}");
        }
        let allows = "issue allows 0.89 of the memory's rate on NVIDIA B200";
        for (estimate, expected) in [(Some(&estimate(0.89)), allows), (None, "no estimate")] {
            let mut found = Vec::new();
            budget.examine(Some(&figures()), estimate, &mut |p| found.push(p));
            assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
        }
    }

    #[test]
    fn a_kernel_without_figures_is_a_finding() {
        let mut found = Vec::new();
        FigureBudget::default().examine(None, None, &mut |problem| found.push(problem));
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn misspelt_keys_are_refused() {
        let text = TEXT.replace("min_ctas_per_sm", "min_ctas");
        assert!(toml::from_str::<FigureBudget>(&text).is_err());
    }
}
