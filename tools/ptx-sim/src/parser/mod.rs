//! From tokens to the [`Module`]: declarations in `module`, instructions in `instruction`.

mod instruction;
mod module;

use crate::ast::{Module, Operand};
use crate::error::ParseError;
use crate::lexer::{Tok, Token, lex};

/// Nested `{ }` deeper than this are refused, so that hostile input cannot exhaust the stack.
const MAX_DEPTH: u32 = 64;

/// Parses a PTX source.
pub(crate) fn parse(src: &str) -> Result<Module, ParseError> {
    let tokens = lex(src)?;
    let mut p = Parser {
        src,
        tokens,
        at: 0,
        depth: 0,
    };
    let grid_workspace = p
        .tokens
        .iter()
        .any(|t| matches!(&t.tok, Tok::Word(w) if w == "%envreg2"));
    let module = p.module()?;
    Ok(Module {
        grid_workspace,
        ..module
    })
}

struct Parser<'a> {
    src: &'a str,
    tokens: Vec<Token>,
    at: usize,
    depth: u32,
}

type Res<T> = Result<T, ParseError>;

impl Parser<'_> {
    fn peek(&self) -> &Tok {
        &self.tokens[self.at].tok
    }

    fn peek_at(&self, ahead: usize) -> &Tok {
        &self.tokens[(self.at + ahead).min(self.tokens.len() - 1)].tok
    }

    fn line(&self) -> u32 {
        self.tokens[self.at].line
    }

    fn next(&mut self) -> Tok {
        let t = self.tokens[self.at].tok.clone();
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        t
    }

    fn err<T>(&self, message: impl Into<String>) -> Res<T> {
        Err(ParseError::new(self.line(), message))
    }

    fn is(&self, c: char) -> bool {
        *self.peek() == Tok::Punct(c)
    }

    fn eat(&mut self, c: char) -> bool {
        let yes = self.is(c);
        if yes {
            self.next();
        }
        yes
    }

    fn expect(&mut self, c: char) -> Res<()> {
        if self.eat(c) {
            return Ok(());
        }
        self.err(format!("expected `{c}`, found {}", describe(self.peek())))
    }

    fn word(&mut self) -> Res<String> {
        match self.peek() {
            Tok::Word(_) => match self.next() {
                Tok::Word(w) => Ok(w),
                _ => unreachable!("peeked"),
            },
            other => self.err(format!("expected a name, found {}", describe(other))),
        }
    }

    fn is_word(&self, w: &str) -> bool {
        matches!(self.peek(), Tok::Word(x) if x == w)
    }

    fn eat_word(&mut self, w: &str) -> bool {
        let yes = self.is_word(w);
        if yes {
            self.next();
        }
        yes
    }

    /// An integer, perhaps negative.
    fn int(&mut self) -> Res<u64> {
        match self.literal()? {
            Operand::Int(v) => Ok(v),
            _ => self.err("expected an integer"),
        }
    }

    fn u32(&mut self) -> Res<u32> {
        let v = self.int()?;
        u32::try_from(v).or_else(|_| self.err(format!("{v} does not fit 32 bits")))
    }

    /// A literal with its signs, or a parenthesised one.
    fn literal(&mut self) -> Res<Operand> {
        let mut negative = false;
        let mut inverted = false;
        loop {
            if self.eat('-') {
                negative = !negative;
            } else if self.eat('+') {
            } else if !inverted && !negative && self.eat('~') {
                inverted = true;
            } else {
                break;
            }
        }
        let v = match self.peek().clone() {
            Tok::Int(v) => Operand::Int(if negative { v.wrapping_neg() } else { v }),
            Tok::F32(b) => Operand::F32(if negative { b ^ (1 << 31) } else { b }),
            Tok::F64(b) => Operand::F64(if negative { b ^ (1 << 63) } else { b }),
            other => return self.err(format!("expected a literal, found {}", describe(&other))),
        };
        self.next();
        match v {
            Operand::Int(v) if inverted => Ok(Operand::Int(!v)),
            _ if inverted => self.err("`~` needs an integer"),
            v => Ok(v),
        }
    }

    /// Passes over everything up to the closing brace of the one just opened.
    fn skip_braces(&mut self) -> Res<()> {
        let mut depth = 1;
        while depth > 0 {
            match self.next() {
                Tok::Punct('{') => depth += 1,
                Tok::Punct('}') => depth -= 1,
                Tok::End => return self.err("`{` is never closed"),
                _ => {}
            }
        }
        Ok(())
    }
}

fn describe(t: &Tok) -> String {
    match t {
        Tok::Word(w) => format!("`{w}`"),
        Tok::Int(v) => format!("`{v}`"),
        Tok::F32(_) | Tok::F64(_) => "a float".into(),
        Tok::Str(s) => format!("\"{s}\""),
        Tok::Punct(c) => format!("`{c}`"),
        Tok::End => "the end of the source".into(),
    }
}

#[cfg(test)]
mod tests;
