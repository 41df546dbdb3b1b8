//! Shows how far an installation is: a bar on a terminal, else one line per package.

use std::cell::Cell;
use std::io::IsTerminal;
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};

use crate::toolchain::pins::{Bundle, Pin};

#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    is_terminal: bool,
    /// Bytes of the packages that are finished.
    done: Cell<u64>,
}

impl Progress {
    /// `again`: there is one, but it is damaged or of other versions.
    pub(crate) fn start(bundle: &Bundle, again: bool) -> Self {
        let total = bundle.pins.iter().map(|pin| pin.bytes).sum();
        let is_terminal = std::io::stderr().is_terminal();
        eprintln!(
            "{} {}: {} packages, {} to download where not here already",
            if again { "Repairing" } else { "Installing" },
            bundle.purpose,
            bundle.pins.len(),
            megabytes(total)
        );
        // On anything but a terminal indicatif shows nothing.
        let bar = ProgressBar::new(total);
        if let Ok(style) = ProgressStyle::with_template(
            "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {wide_msg}",
        ) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(std::time::Duration::from_millis(200));
        Self {
            bar,
            is_terminal,
            done: Cell::new(0),
        }
    }

    pub(crate) fn package_started(&self, pin: &Pin) {
        self.bar
            .set_message(format!("{} {}", pin.name, pin.version));
    }

    /// `bytes` of this package have arrived so far.
    pub(crate) fn received(&self, pin: &Pin, bytes: u64) {
        self.bar
            .set_position(self.done.get() + bytes.min(pin.bytes));
    }

    pub(crate) fn package_done(&self, pin: &Pin) {
        self.done.set(self.done.get() + pin.bytes);
        self.bar.set_position(self.done.get());
        if !self.is_terminal {
            let Pin { name, version, .. } = pin;
            eprintln!("  {name} {version}: {}, verified", megabytes(pin.bytes));
        }
    }

    pub(crate) fn note(&self, text: &str) {
        self.bar.suspend(|| eprintln!("  {text}"));
    }

    pub(crate) fn unpacking(&self) {
        self.bar.set_message("unpacking");
    }

    pub(crate) fn finish(&self, directory: &Path) {
        self.bar.finish_and_clear();
        eprintln!("Installed in {}", directory.display());
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
