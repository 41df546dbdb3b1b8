//! Directives: everything outside instructions.

use super::{MAX_DEPTH, Parser, Res, describe};
use crate::ast::{DeclSpace, Function, Init, Loc, Module, Stmt, Ty, VarDecl};
use crate::lexer::Tok;

fn decl_space(word: &str) -> Option<DeclSpace> {
    word.strip_prefix('.').and_then(DeclSpace::parse)
}

impl Parser<'_> {
    pub(super) fn module(&mut self) -> Res<Module> {
        let mut m = Module::default();
        loop {
            let external = self.linkage();
            let word = match self.peek().clone() {
                Tok::End => break,
                Tok::Word(w) => w,
                Tok::Punct(';') => {
                    self.next();
                    continue;
                }
                other => {
                    return self.err(format!("expected a directive, found {}", describe(&other)));
                }
            };
            match word.as_str() {
                ".version" => {
                    self.next();
                    m.version = self.version()?;
                }
                ".target" => {
                    self.next();
                    m.target.push(self.word()?);
                    while self.eat(',') {
                        m.target.push(self.word()?);
                    }
                }
                ".address_size" => {
                    self.next();
                    if self.int()? != 64 {
                        return self.err("only .address_size 64 is modelled");
                    }
                }
                ".entry" | ".func" => {
                    let f = self.function(word == ".entry")?;
                    m.functions.push(f);
                }
                ".file" => {
                    self.next();
                    let index = self.u32()?;
                    match self.next() {
                        Tok::Str(s) => m.files.push((index, s)),
                        other => {
                            return self
                                .err(format!("expected a path, found {}", describe(&other)));
                        }
                    }
                    while self.eat(',') {
                        self.int()?;
                    }
                }
                ".section" => {
                    self.next();
                    while !self.eat('{') {
                        if *self.peek() == Tok::End {
                            return self.err(".section has no body");
                        }
                        self.next();
                    }
                    self.skip_braces()?;
                }
                ".pragma" | ".alias" => self.skip_statement()?,
                w if decl_space(w).is_some() => {
                    for v in self.variables(external, false)? {
                        m.vars.push(v);
                    }
                }
                other => return self.err(format!("directive `{other}` is not known")),
            }
        }
        if m.version == (0, 0) {
            return self.err(".version is missing");
        }
        if m.target.is_empty() {
            return self.err(".target is missing");
        }
        Ok(m)
    }

    fn version(&mut self) -> Res<(u32, u32)> {
        match self.next() {
            Tok::F64(bits) => {
                let v = f64::from_bits(bits);
                Ok((v as u32, ((v.fract() * 10.0).round()) as u32))
            }
            Tok::Int(v) => Ok((u32::try_from(v).unwrap_or(u32::MAX), 0)),
            other => self.err(format!("expected a version, found {}", describe(&other))),
        }
    }

    /// Linking directives; returns whether `.extern` was among them.
    fn linkage(&mut self) -> bool {
        let mut external = false;
        loop {
            if self.eat_word(".extern") {
                external = true;
            } else if !(self.eat_word(".visible")
                || self.eat_word(".weak")
                || self.eat_word(".common"))
            {
                return external;
            }
        }
    }

    pub(super) fn skip_statement(&mut self) -> Res<()> {
        loop {
            match self.next() {
                Tok::Punct(';') => return Ok(()),
                Tok::End => return self.err("statement is never ended"),
                _ => {}
            }
        }
    }

    /// `.shared .align 16 .b8 a[4], b;`, or a parameter, which has neither list nor semicolon.
    fn variables(&mut self, external: bool, parameter: bool) -> Res<Vec<VarDecl>> {
        let line = self.line();
        let mut space = None;
        let (mut ty, mut align, mut vector) = (None, None, 1);
        while let Tok::Word(w) = self.peek().clone() {
            if !w.starts_with('.') {
                break;
            }
            self.next();
            if let Some(s) = decl_space(&w) {
                space = Some(s);
            } else if let Some(t) = Ty::parse(&w[1..]) {
                ty = Some(t);
            } else {
                match w.as_str() {
                    ".align" => align = Some(self.u32()?),
                    ".v2" => vector = 2,
                    ".v4" => vector = 4,
                    ".v8" => vector = 8,
                    // Attributes of pointer parameters: hints that change nothing here.
                    ".ptr" => {}
                    ".attribute" => {
                        return self.err(".attribute is not modelled");
                    }
                    other => return self.err(format!("`{other}` is not known in a declaration")),
                }
            }
        }
        let Some(space) = space else {
            return self.err("declaration without a state space");
        };
        let Some(ty) = ty else {
            return self.err("declaration without a type");
        };
        if ty == Ty::Pred {
            return self.err("a predicate cannot live in memory");
        }
        let align = align.unwrap_or(ty.bytes() * vector);
        if !align.is_power_of_two() || align > 1 << 16 {
            return self.err(format!("alignment {align} is not a power of two"));
        }
        let mut out = Vec::new();
        loop {
            let name = self.word()?;
            let mut count = Some(1u64);
            while self.eat('[') {
                count = if self.is(']') {
                    None
                } else {
                    let n = self.int()?;
                    match count.and_then(|c| c.checked_mul(n)) {
                        Some(c) if c <= 1 << 40 => Some(c),
                        _ => return self.err("array is too large"),
                    }
                };
                self.expect(']')?;
            }
            let mut init = Vec::new();
            if self.eat('=') {
                self.initialiser(&mut init)?;
            }
            if !init.is_empty() && count.is_none() {
                count = Some(init.len() as u64);
            }
            out.push(VarDecl {
                space,
                ty,
                vector,
                align,
                name,
                count,
                init,
                external,
                line,
            });
            if parameter || !self.eat(',') {
                break;
            }
        }
        if !parameter {
            self.expect(';')?;
        }
        Ok(out)
    }

    fn initialiser(&mut self, out: &mut Vec<Init>) -> Res<()> {
        if self.eat('{') {
            self.depth += 1;
            if self.depth > MAX_DEPTH {
                return self.err("braces are nested too deeply");
            }
            loop {
                self.initialiser(out)?;
                if !self.eat(',') {
                    break;
                }
            }
            self.depth -= 1;
            return self.expect('}');
        }
        if let Tok::Word(w) = self.peek().clone() {
            self.next();
            let generic = w == "generic" && self.eat('(');
            let name = if generic { self.word()? } else { w };
            if generic {
                self.expect(')')?;
            }
            let offset = if self.is('+') || self.is('-') {
                self.int()? as i64
            } else {
                0
            };
            out.push(Init::Address(name, offset, generic));
            return Ok(());
        }
        let v = self.literal()?;
        out.push(Init::Bits(v));
        Ok(())
    }

    fn dims(&mut self) -> Res<[u32; 3]> {
        let mut d = [1; 3];
        d[0] = self.u32()?;
        for slot in &mut d[1..] {
            if !self.eat(',') {
                break;
            }
            *slot = self.u32()?;
        }
        Ok(d)
    }

    fn function(&mut self, entry: bool) -> Res<Function> {
        let line = self.line();
        self.next();
        let mut f = Function {
            entry,
            line,
            ..Function::default()
        };
        if !entry && self.eat('(') {
            f.result = self.parameters()?.pop();
        }
        f.name = self.word()?;
        if self.eat('(') {
            f.params = self.parameters()?;
        }
        while let Tok::Word(w) = self.peek().clone() {
            self.next();
            match w.as_str() {
                ".reqntid" => f.reqntid = Some(self.dims()?),
                ".maxntid" => f.maxntid = Some(self.dims()?),
                ".reqnctapercluster" => f.cluster = Some(self.dims()?),
                ".explicitcluster" => f.explicit_cluster = true,
                ".maxclusterrank" => f.max_cluster_rank = Some(self.u32()?),
                ".minnctapersm" | ".maxnctapersm" | ".maxnreg" => {
                    self.u32()?;
                }
                ".noreturn" => {}
                ".pragma" => self.skip_statement()?,
                other => return self.err(format!("directive `{other}` is not known")),
            }
        }
        if self.eat(';') {
            return Ok(f);
        }
        self.expect('{')?;
        f.body = Some(self.block()?.into());
        Ok(f)
    }

    /// Declarations up to and with the closing parenthesis.
    fn parameters(&mut self) -> Res<Vec<VarDecl>> {
        let mut all = Vec::new();
        while !self.eat(')') {
            if !all.is_empty() {
                self.expect(',')?;
            }
            if self.is_word(".reg") {
                return self.err("parameters in registers are not modelled");
            }
            all.append(&mut self.variables(false, true)?);
        }
        Ok(all)
    }

    /// The statements up to and with the closing brace.
    fn block(&mut self) -> Res<Vec<Stmt>> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.err("braces are nested too deeply");
        }
        let mut out = Vec::new();
        while !self.eat('}') {
            self.statement(&mut out)?;
        }
        self.depth -= 1;
        Ok(out)
    }

    fn statement(&mut self, out: &mut Vec<Stmt>) -> Res<()> {
        let line = self.line();
        let word = match self.peek().clone() {
            Tok::Punct('{') => {
                self.next();
                let body = self.block()?;
                out.push(Stmt::Block(body));
                return Ok(());
            }
            Tok::Punct(';') => {
                self.next();
                return Ok(());
            }
            Tok::Punct('@') => {
                let i = self.instruction()?;
                out.push(Stmt::Instr(i));
                return Ok(());
            }
            Tok::Word(w) => w,
            other => return self.err(format!("expected a statement, found {}", describe(&other))),
        };
        if *self.peek_at(1) == Tok::Punct(':') {
            self.next();
            self.next();
            if self.eat_word(".branchtargets") {
                let mut names = vec![self.word()?];
                while self.eat(',') {
                    names.push(self.word()?);
                }
                self.expect(';')?;
                out.push(Stmt::BranchTargets(word, names, line));
            } else if self.eat_word(".callprototype") || self.eat_word(".calltargets") {
                // For calls of functions by address, which are not executed.
                self.skip_statement()?;
            } else {
                out.push(Stmt::Label(word, line));
            }
            return Ok(());
        }
        match word.as_str() {
            ".reg" => {
                self.next();
                let s = self.registers(line)?;
                out.push(s);
            }
            ".loc" => {
                self.next();
                let loc = self.loc()?;
                let mut inlined = None;
                while self.eat(',') {
                    if self.eat_word("inlined_at") {
                        inlined = Some(self.loc()?);
                        continue;
                    }
                    // function_name.
                    self.word()?;
                    loop {
                        // A label may follow: inline assembly without instructions leaves nothing.
                        let label = *self.peek_at(1) == Tok::Punct(':');
                        match self.peek() {
                            Tok::Int(_) | Tok::Punct('+') => self.next(),
                            Tok::Word(w) if w.starts_with('$') && !label => self.next(),
                            _ => break,
                        };
                    }
                }
                out.push(Stmt::Loc(loc, inlined));
            }
            ".pragma" => self.skip_statement()?,
            ".extern" => {
                self.next();
                for v in self.variables(true, false)? {
                    out.push(Stmt::Var(v));
                }
            }
            w if decl_space(w).is_some() => {
                for v in self.variables(false, false)? {
                    out.push(Stmt::Var(v));
                }
            }
            w if w.starts_with('.') => return self.err(format!("directive `{w}` is not known")),
            _ => {
                let i = self.instruction()?;
                out.push(Stmt::Instr(i));
            }
        }
        Ok(())
    }

    fn loc(&mut self) -> Res<Loc> {
        Ok(Loc {
            file: self.u32()?,
            line: self.u32()?,
            column: self.u32()?,
        })
    }

    fn registers(&mut self, line: u32) -> Res<Stmt> {
        let w = self.word()?;
        let Some(ty) = w.strip_prefix('.').and_then(Ty::parse) else {
            return self.err(format!("`{w}` is not a register type that is modelled"));
        };
        let mut names = Vec::new();
        loop {
            let name = self.word()?;
            let count = if self.eat('<') {
                let n = self.u32()?;
                if n > 1 << 20 {
                    return self.err("too many registers");
                }
                self.expect('>')?;
                Some(n)
            } else {
                None
            };
            names.push((name, count));
            if !self.eat(',') {
                break;
            }
        }
        self.expect(';')?;
        Ok(Stmt::Reg(ty, names, line))
    }
}
