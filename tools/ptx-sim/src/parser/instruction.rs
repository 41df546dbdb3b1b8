//! Instructions and operands.

use super::{MAX_DEPTH, Parser, Res, describe};
use crate::ast::{Guard, Instr, Operand};
use crate::lexer::Tok;

impl Parser<'_> {
    pub(super) fn instruction(&mut self) -> Res<Instr> {
        let first = self.at;
        let line = self.line();
        let guard = if self.eat('@') {
            let negated = self.eat('!');
            Some(Guard {
                name: self.word()?,
                negated,
            })
        } else {
            None
        };
        let word = self.word()?;
        let mut parts = word.split('.').map(str::to_string);
        let opcode = parts.next().unwrap_or_default();
        if opcode.is_empty() || !opcode.starts_with(|c: char| c.is_ascii_lowercase()) {
            return self.err(format!("`{word}` is not an opcode"));
        }
        let mods: Vec<String> = parts.collect();
        if mods.iter().any(String::is_empty) {
            return self.err(format!("`{word}` has an empty modifier"));
        }
        let mut operands = Vec::new();
        if !self.is(';') {
            loop {
                operands.push(self.operand()?);
                if !self.eat(',') {
                    break;
                }
            }
        }
        let last = self.at;
        self.expect(';')?;
        let from = self.tokens[first].start;
        let to = self.tokens[last].start;
        let text = self
            .src
            .get(from..to)
            .unwrap_or_default()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        Ok(Instr {
            guard,
            opcode,
            mods,
            operands,
            line,
            text,
        })
    }

    fn operand(&mut self) -> Res<Operand> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.err("operands are nested too deeply");
        }
        let mut o = self.operand_inner()?;
        if self.eat('|') {
            o = Operand::Pair(Box::new(o), Box::new(self.operand_inner()?));
        }
        self.depth -= 1;
        Ok(o)
    }

    fn operand_inner(&mut self) -> Res<Operand> {
        match self.peek().clone() {
            Tok::Word(w) => {
                self.next();
                if w == "_" {
                    return Ok(Operand::Sink);
                }
                if self.is('+') || self.is('-') {
                    let offset = self.int()? as i64;
                    return Ok(Operand::NameOffset(w, offset));
                }
                Ok(Operand::Name(w))
            }
            Tok::Punct('!') => {
                self.next();
                Ok(Operand::Not(self.word()?))
            }
            Tok::Punct('{') => {
                self.next();
                let list = self.operand_list('}')?;
                Ok(Operand::Vector(list))
            }
            Tok::Punct('(') => {
                self.next();
                let list = self.operand_list(')')?;
                Ok(Operand::List(list))
            }
            Tok::Punct('[') => {
                self.next();
                let (base, offset) = match self.operand()? {
                    Operand::NameOffset(n, o) => (Operand::Name(n), o),
                    base @ (Operand::Name(_) | Operand::Int(_)) => (base, 0),
                    _ => return self.err("an address is a register, a variable or an integer"),
                };
                let mut rest = Vec::new();
                while self.eat(',') {
                    rest.push(self.operand()?);
                }
                self.expect(']')?;
                Ok(Operand::Address {
                    base: Box::new(base),
                    offset,
                    rest,
                })
            }
            Tok::Int(_) | Tok::F32(_) | Tok::F64(_) | Tok::Punct('-' | '+' | '~') => self.literal(),
            other => self.err(format!("expected an operand, found {}", describe(&other))),
        }
    }

    fn operand_list(&mut self, close: char) -> Res<Vec<Operand>> {
        let mut list = Vec::new();
        if self.eat(close) {
            return Ok(list);
        }
        loop {
            list.push(self.operand()?);
            if !self.eat(',') {
                break;
            }
        }
        self.expect(close)?;
        Ok(list)
    }
}
