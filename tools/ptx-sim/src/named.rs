//! Enumerations whose variants have names: those of PTX, of options, of reports.

/// An enumeration with `ALL`, `name`, `parse` and `Display`; with `: "text"` behind the names also `about`.
macro_rules! named {
    (
        $(#[$outer:meta])*
        $name:ident { $($(#[$inner:meta])* $variant:ident $text:literal $(: $about:literal)?,)* }
    ) => {
        $(#[$outer])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$inner])* $(#[doc = $about])? $variant,)* }

        impl $name {
            /// All of them.
            pub const ALL: [$name; [$($text),*].len()] = [$($name::$variant),*];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }

            /// The one of this name.
            pub fn parse(name: &str) -> Option<Self> {
                Some(match name { $($text => $name::$variant,)* _ => return None })
            }

            named!(@about $name $($variant $($about)?,)*);
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(s: &str) -> Result<Self, String> {
                let names = || Self::ALL.map(Self::name).join(", ");
                Self::parse(s).ok_or_else(|| format!("`{s}` is none of {}", names()))
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
    (@about $name:ident $($variant:ident,)*) => {};
    (@about $name:ident $($variant:ident $about:literal,)*) => {
        /// Its meaning, in a line.
        pub fn about(self) -> &'static str {
            match self { $($name::$variant => $about,)* }
        }
    };
}
