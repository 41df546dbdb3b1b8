//! `printf` and `assert` of kernels. Their operands are variables in local memory.

use sprintf::Printf;

use super::machine::{Machine, OfLane, Place, Tried, Trouble};
use super::warp::Warp;
use super::{Ctx, lanes};
use crate::error::SimError;
use crate::memory::{AccessKind, Fault, Space};
use crate::program::{Addr, Order, Src};
use crate::report::{Report, ViolationKind};

/// Most bytes of a format, or of a text that it prints.
const MAX_TEXT: usize = 1 << 16;
/// Most columns and digits that a conversion asks for.
const MAX_WIDTH: u64 = 9999;

/// A generic address.
const GENERIC: Addr = Addr {
    space: None,
    own: false,
    base: Src(Src::CONST),
    offset: 0,
    narrow: false,
};

/// The lane that executes.
struct Lane<'a, 'p> {
    c: &'a Ctx<'p>,
    w: &'a mut Warp,
    lane: u32,
}

/// A conversion, from behind its `%`: flags, width and precision; the length of its value; what it is; the text behind.
fn conversion(s: &str) -> Option<(&str, &str, char, &str)> {
    let (numbers, s) = s.split_at(s.find(|c: char| !"#+- .*0123456789".contains(c))?);
    let (length, s) = s.split_at(s.find(|c: char| !"hlLjzt".contains(c))?);
    let kind = s.chars().next()?;
    Some((numbers, length, kind, &s[kind.len_utf8()..]))
}

/// A number by a conversion of one, from `%` to its letter. The package rounds digits itself, and knows no exponent of 0.
/// `None` for more columns or digits than [`MAX_WIDTH`].
fn float(form: &str, v: f64) -> Option<String> {
    let (numbers, kind) = form[1..].split_at(form.len() - 2);
    let flags = numbers.find(|c: char| !"#+- 0".contains(c));
    let (flags, numbers) = numbers.split_at(flags.unwrap_or(numbers.len()));
    let (width, digits) = numbers.split_once('.').unwrap_or((numbers, "6"));
    let number = |s: &str| match s {
        "" => Some(0),
        _ => s.parse().ok().filter(|&n: &usize| n as u64 <= MAX_WIDTH),
    };
    // A negative number of digits, which only a value can be, counts as none given.
    let digits = if digits.starts_with('-') { "6" } else { digits };
    let (width, digits) = (number(width)?, number(digits)?);
    let with_exponent = |digits: usize| {
        let text = format!("{:.digits$e}", v.abs());
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        (mantissa.to_owned(), exponent)
    };
    let scientific = |mantissa: String, exponent: i32| {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{mantissa}e{sign}{:02}", exponent.abs())
    };
    // A point that stands for no digit, and zeros behind it, of `%g`.
    let short = |text: String| match text.contains('.') && !flags.contains('#') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    };
    let text = match kind.to_ascii_lowercase().as_str() {
        _ if v.is_nan() => "nan".into(),
        _ if v.is_infinite() => "inf".into(),
        "f" => format!("{:.digits$}", v.abs()),
        "e" => {
            let (mantissa, exponent) = with_exponent(digits);
            scientific(mantissa, exponent)
        }
        _ => {
            let digits = digits.max(1);
            let (mantissa, exponent) = with_exponent(digits - 1);
            match (-4..digits as i32).contains(&exponent) {
                true => {
                    let behind = (digits as i32 - 1 - exponent) as usize;
                    short(format!("{:.behind$}", v.abs()))
                }
                false => scientific(short(mantissa), exponent),
            }
        }
    };
    let sign = match v.is_sign_negative() && !v.is_nan() {
        true => "-",
        false if flags.contains('+') => "+",
        false if flags.contains(' ') => " ",
        false => "",
    };
    let fill = width.saturating_sub(sign.len() + text.len());
    let text = match (flags.contains('-'), flags.contains('0') && v.is_finite()) {
        (true, _) => format!("{sign}{text}{:fill$}", ""),
        (false, true) => format!("{sign}{:0>fill$}{text}", ""),
        (false, false) => format!("{:fill$}{sign}{text}", ""),
    };
    Some(match kind.to_ascii_uppercase() == kind {
        true => text.to_uppercase(),
        false => text,
    })
}

impl Machine<'_> {
    /// `vprintf`: each lane's text goes to the report.
    pub(super) fn printf(
        &mut self,
        c: &Ctx<'_>,
        w: &mut Warp,
        [result, format, values]: [u64; 3],
    ) -> Tried<()> {
        for lane in lanes(c.active) {
            let of = &mut Lane { c, w, lane };
            let format = self.local(of, format, 8)?;
            let format = self.text(of, format)?;
            let mut next = self.local(of, values, 8)?;
            let (text, count) = self.formatted(of, &format, &mut next)?;
            if self.report.printed.len() + text.len() <= Report::MAX_PRINTED {
                self.report.printed += &text;
            } else {
                self.report.printed_dropped += 1;
            }
            let (at, actor) = (of.variable(result), c.actor(self, of.w, lane));
            let how = (AccessKind::Write, Order::default());
            self.store(of.w, actor, &at, 4, &u32::to_le_bytes(count), how)?;
        }
        Ok(())
    }

    /// A format with its values, which lie one behind the other, each aligned to its size; and their number.
    fn formatted(
        &mut self,
        of: &mut Lane<'_, '_>,
        format: &str,
        next: &mut u64,
    ) -> Tried<(String, u32)> {
        let (mut text, mut count) = (String::new(), 0);
        let mut rest = format;
        while let Some((before, behind)) = rest.split_once('%') {
            text += before;
            let Some((numbers, length, kind, behind)) = conversion(behind) else {
                return Err(of.unmodelled(format!("the format {format:?}")));
            };
            rest = behind;
            let mut value = |bytes: u64| {
                let at = next.wrapping_add(bytes - 1) & !(bytes - 1);
                *next = at.wrapping_add(bytes);
                count += 1;
                self.at_generic(of, at, bytes)
            };
            // A width or a precision may be a value itself.
            let mut form = String::from("%");
            for part in numbers.split_inclusive('*') {
                form += part.trim_end_matches('*');
                if part.ends_with('*') {
                    form += &(value(4)? as u32 as i32).to_string();
                }
            }
            form.push(kind);
            // The package does not know how many digits an integer has at least.
            if numbers.contains('.') && "diuoxXp".contains(kind) {
                return Err(of.unmodelled(format!("the precision in {form:?}")));
            }
            let wide = length.contains(['l', 'L', 'j', 'z', 't']);
            let v: Box<dyn Printf> = match kind {
                '%' => {
                    text.push('%');
                    continue;
                }
                'd' | 'i' => {
                    let v = value(if wide { 8 } else { 4 })?;
                    let v = match length {
                        _ if wide => v as i64,
                        "hh" => i64::from(v as i8),
                        "h" => i64::from(v as i16),
                        _ => i64::from(v as i32),
                    };
                    match v {
                        // The package takes the absolute value of a number that is negative.
                        i64::MIN => {
                            form = form.replace(kind, "s");
                            Box::new(v.to_string())
                        }
                        _ => Box::new(v),
                    }
                }
                'u' | 'o' | 'x' | 'X' => {
                    let v = value(if wide { 8 } else { 4 })?;
                    Box::new(match length {
                        "hh" => v & 0xff,
                        "h" => v & 0xffff,
                        _ => v,
                    })
                }
                'c' => Box::new(char::from(value(4)? as u8)),
                'p' => Box::new(value(8)?),
                'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
                    let v = f64::from_bits(value(8)?);
                    let Some(t) = float(&form, v) else {
                        return Err(of.unmodelled(format!("the width in {form:?}")));
                    };
                    form = "%s".into();
                    Box::new(t)
                }
                's' => {
                    let at = value(8)?;
                    Box::new(self.text(of, at)?)
                }
                _ => return Err(of.unmodelled(format!("`%{kind}` of the format {format:?}"))),
            };
            let mut widths = form.split(|c: char| !c.is_ascii_digit());
            if widths.any(|n| n.parse::<u64>().is_ok_and(|n| n > MAX_WIDTH) || n.len() > 19) {
                return Err(of.unmodelled(format!("the width in {form:?}")));
            }
            match sprintf::vsprintf(&form, &[&*v]) {
                Ok(t) => text += &t,
                Err(e) => return Err(of.unmodelled(format!("{form:?}: {e}"))),
            }
            if text.len() > MAX_TEXT {
                return Err(of.unmodelled("a text of more than 64 KiB".into()));
            }
        }
        Ok((text + rest, count))
    }

    /// `__assertfail`: an `assert` of the first active lane does not hold.
    pub(super) fn assert_fail(
        &mut self,
        c: &Ctx<'_>,
        w: &mut Warp,
        texts: [u64; 3],
        line: u64,
    ) -> Tried<()> {
        let lane = c.active.trailing_zeros();
        let of = &mut Lane { c, w, lane };
        let mut said = Vec::new();
        for at in texts {
            let address = self.local(of, at, 8)?;
            said.push(self.text(of, address)?);
        }
        let line = self.local(of, line, 4)?;
        let [condition, file, function] = &said[..] else {
            return Ok(());
        };
        let message = format!("assertion `{condition}` does not hold: {file}:{line}, {function}");
        Err(Fault::new(ViolationKind::Assertion, message).of_lane(lane))
    }

    /// The value of a variable.
    fn local(&mut self, of: &mut Lane<'_, '_>, variable: u64, bytes: u64) -> Tried<u64> {
        let at = of.variable(variable);
        self.number(of, &at, bytes)
    }

    fn at_generic(&mut self, of: &mut Lane<'_, '_>, address: u64, bytes: u64) -> Tried<u64> {
        let at = self.locate(of.c, &GENERIC, address, of.lane)?;
        self.number(of, &at, bytes)
    }

    fn number(&mut self, of: &mut Lane<'_, '_>, at: &Place, bytes: u64) -> Tried<u64> {
        let actor = of.c.actor(self, of.w, of.lane);
        let mut word = [0; 8];
        let out = &mut word[..bytes as usize];
        self.load(of.w, actor, at, bytes as u32, out, Order::default())?;
        Ok(u64::from_le_bytes(word))
    }

    /// The text at a generic address, up to its zero.
    fn text(&mut self, of: &mut Lane<'_, '_>, address: u64) -> Tried<String> {
        let mut text = Vec::new();
        while text.len() < MAX_TEXT {
            match self.at_generic(of, address.wrapping_add(text.len() as u64), 1)? {
                0 => return Ok(String::from_utf8_lossy(&text).into_owned()),
                byte => text.push(byte as u8),
            }
        }
        Err(of.unmodelled("a text of more than 64 KiB".into()))
    }
}

impl Lane<'_, '_> {
    fn variable(&self, address: u64) -> Place {
        Place {
            space: Space::Local,
            owner: self.c.cta,
            address,
        }
    }

    fn unmodelled(&self, what: String) -> Trouble {
        let ins = &self.c.program.code[self.c.pc];
        Trouble::Error(SimError::Unmodelled {
            line: ins.line,
            text: ins.text.clone(),
            reason: format!("{what} is not modelled"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::float;

    /// As C's `printf` prints them.
    #[test]
    fn numbers_are_as_c_prints_them() {
        for (form, v, expected) in [
            ("%f", 0.5, "0.500000"),
            ("%.2f", 0.125, "0.12"),
            ("%.20f", 0.5, "0.50000000000000000000"),
            ("%.0f", 2.5, "2"),
            ("%8.3f", -1.5, "  -1.500"),
            ("%-8.1f", 1.5, "1.5     "),
            ("%+08.2f", 1.5, "+0001.50"),
            ("%e", 0.0, "0.000000e+00"),
            ("%.3E", 12345.678, "1.235E+04"),
            ("%.1e", 9.99e-5, "1.0e-04"),
            ("%g", 0.0, "0"),
            ("%g", 1.0, "1"),
            ("%g", 10.0, "10"),
            ("%g", 0.0001, "0.0001"),
            ("%g", 1e-5, "1e-05"),
            ("%g", 123456.0, "123456"),
            ("%g", 1234567.0, "1.23457e+06"),
            ("%#g", 1.0, "1.00000"),
            ("%.3g", 2.0 / 3.0, "0.667"),
            ("%5g", f64::INFINITY, "  inf"),
            ("%F", f64::NEG_INFINITY, "-INF"),
            ("%06f", f64::NAN, "   nan"),
        ] {
            assert_eq!(float(form, v).as_deref(), Some(expected), "{form} of {v}");
        }
        assert_eq!(float("%10000f", 1.0), None);
        assert_eq!(float("%.99999f", 1.0), None);
    }
}
