/// Demands an error that this pattern is of.
macro_rules! refused {
    ($made:expr => $why:pat) => {{
        let made = $made.map(drop);
        assert!(matches!(made, Err($why)), "{made:?}");
    }};
}
