//! Colours. The picture brings its own background, in a light and a dark form.

use super::rows::Look;

/// Class, text of the legend, and whether text on it is white.
pub(super) const LOOKS: [(Look, &str, &str, bool); 8] = [
    (Look::Run, "r", "runs", true),
    (Look::Wait, "w", "waits", false),
    (Look::Copy, "c", "copy", true),
    (Look::Cp, "s", "cp", true),
    (Look::Mma, "m", "mma", true),
    (Look::Commit, "k", "commit", true),
    (Look::LdSt, "l", "ld, st", true),
    (Look::EvenPhase, "e", "phase, even", false),
];

pub(super) fn class(look: Look) -> &'static str {
    let known = LOOKS.iter().find(|l| l.0 == look);
    known.map_or("o", |l| l.1)
}

pub(super) fn white_text(look: Look) -> bool {
    LOOKS.iter().any(|l| l.0 == look && l.3)
}

pub(super) const CSS: &str = "\
text{font:10px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1f2328}\
.h{font-size:14px;font-weight:600}.g{font-weight:600}.d{fill:#59636e}.i{fill:#fff}\
.a{text-anchor:end}.t{text-anchor:middle}\
.b{fill:#fff;stroke:#d1d9e0}.x{stroke:#e4e9ee}.z{fill:#f6f8fa}\
.r{fill:#4d5763}.w{fill:#e6eaef;stroke:#c3ccd5}.c{fill:#2472d6}.s{fill:#0f857b}.m{fill:#cf5d14}\
.k{fill:#b62324}.l{fill:#7a46d6}.e{fill:#a6dcae}.o{fill:#d7f0da}\
.n{stroke:#fff;stroke-opacity:.75}.f{fill:none;stroke:#b62324;stroke-width:.9;stroke-opacity:.75}\
.p{fill:#b62324}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.d{fill:#9198a1}.i{fill:#fff}\
.b{fill:#0d1117;stroke:#3d444d}.x{stroke:#262c34}.z{fill:#151b23}\
.r{fill:#5c6773}.w{fill:#21262d;stroke:#3d444d}.c{fill:#316dca}.s{fill:#1a7f78}.m{fill:#bd561d}\
.k{fill:#c93c37}.l{fill:#8256d0}.e{fill:#2b6a37}.o{fill:#1b4424}\
.n{stroke:#0d1117}.f{stroke:#f47067}.p{fill:#f47067}}";
