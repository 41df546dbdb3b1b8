//! The public API on a page: `docs/api.md` lists every public item with the first sentence of its documentation.
//!
//! After a wanted change: `NVFP4_GEMV_API=docs cargo test --test api`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::{Attribute, Expr, ExprLit, Item, ItemMacro, Lit, LitStr, Meta, UseTree, Visibility};

const PAGE: &str = include_str!("../docs/api.md");

/// A public item: its kind, the feature that it needs, and the first sentence of its documentation.
struct Entry {
    kind: &'static str,
    feature: Option<String>,
    says: String,
}

/// The items of a module by name.
type Entries = BTreeMap<String, Entry>;

/// A source file of a module.
struct Module {
    items: Vec<Item>,
    attributes: Vec<Attribute>,
    /// The folder of its submodules.
    folder: PathBuf,
}

impl Module {
    fn open(file: &Path, folder: PathBuf) -> Self {
        let text = fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        Self {
            items: parsed.items,
            attributes: parsed.attrs,
            folder,
        }
    }

    fn root() -> Self {
        Self::in_package("")
    }

    /// The root of a package's library: of the one in this folder of the repository.
    fn in_package(folder: &str) -> Self {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
        let src = repository.join(folder).join("src");
        Self::open(&src.join("lib.rs"), src)
    }

    fn child(&self, name: &str) -> Self {
        let folder = self.folder.join(name);
        let inside = self.items.iter().find_map(|item| match item {
            Item::Mod(it) if it.ident == name => Some((it.content.clone()?.1, it.attrs.clone())),
            _ => None,
        });
        if let Some((items, attributes)) = inside {
            return Self {
                items,
                attributes,
                folder,
            };
        }
        let file = self.folder.join(format!("{name}.rs"));
        match file.is_file() {
            true => Self::open(&file, folder),
            false => Self::open(&folder.join("mod.rs"), folder),
        }
    }

    /// The item of a name that the module defines.
    fn find(&self, name: &str) -> Option<Entry> {
        self.items.iter().find_map(|item| {
            if let Item::Macro(it) = item {
                let lines = in_tokens(it.mac.tokens.clone(), name)?;
                return Some(Entry {
                    kind: "enum",
                    feature: None,
                    says: sentence_of(lines.iter().map(String::as_str)),
                });
            }
            let (kind, attributes, _, ident) = parts(item)?;
            let is_it = kind != "module" && ident.as_deref() == Some(name);
            is_it.then(|| entry(kind, attributes))
        })
    }
}

/// The lines of documentation in front of a name in the tokens of a macro that defines it.
fn in_tokens(tokens: TokenStream, name: &str) -> Option<Vec<String>> {
    let mut lines = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                let text = group.stream().to_string();
                match syn::parse_str::<LitStr>(text.strip_prefix("doc =").unwrap_or_default()) {
                    Ok(line) => lines.push(line.value()),
                    Err(_) => {
                        if let Some(found) = in_tokens(group.stream(), name) {
                            return Some(found);
                        }
                    }
                }
            }
            TokenTree::Ident(ident) if ident == name && !lines.is_empty() => return Some(lines),
            TokenTree::Ident(ident) if ident == "pub" || ident == "enum" => {}
            TokenTree::Punct(punct) if punct.as_char() == '#' => {}
            _ => lines.clear(),
        }
    }
    None
}

/// Kind, attributes, visibility and name of an item; no name of a re-export, which may have several.
type Parts<'i> = (
    &'static str,
    &'i [Attribute],
    &'i Visibility,
    Option<String>,
);

fn parts(item: &Item) -> Option<Parts<'_>> {
    let (kind, attributes, visibility, ident) = match item {
        Item::Use(it) => return Some(("re-export", &it.attrs, &it.vis, None)),
        Item::Mod(it) => ("module", &it.attrs, &it.vis, &it.ident),
        Item::Fn(it) => ("function", &it.attrs, &it.vis, &it.sig.ident),
        Item::Struct(it) => ("struct", &it.attrs, &it.vis, &it.ident),
        Item::Enum(it) => ("enum", &it.attrs, &it.vis, &it.ident),
        Item::Trait(it) => ("trait", &it.attrs, &it.vis, &it.ident),
        Item::Type(it) => ("type", &it.attrs, &it.vis, &it.ident),
        Item::Const(it) => ("constant", &it.attrs, &it.vis, &it.ident),
        Item::Static(it) => ("static", &it.attrs, &it.vis, &it.ident),
        _ => return None,
    };
    Some((kind, attributes, visibility, Some(ident.to_string())))
}

fn entry(kind: &'static str, attributes: &[Attribute]) -> Entry {
    Entry {
        kind,
        feature: feature(attributes),
        says: first_sentence(attributes),
    }
}

/// The text of a `cfg` attribute.
fn conditions(attributes: &[Attribute]) -> impl Iterator<Item = String> + '_ {
    attributes
        .iter()
        .filter_map(|attribute| match &attribute.meta {
            Meta::List(list) if list.path.is_ident("cfg") => {
                let tokens = list.tokens.clone();
                Some(tokens.into_iter().map(|token| token.to_string()).collect())
            }
            _ => None,
        })
}

fn feature(attributes: &[Attribute]) -> Option<String> {
    conditions(attributes).find_map(|text| {
        let (_, rest) = text.split_once('"')?;
        Some(rest.split_once('"')?.0.to_string())
    })
}

/// Whether documentation shows it: it needs no feature `unstable`, and is not hidden.
fn is_shown(attributes: &[Attribute]) -> bool {
    let hidden = attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) => list.path.is_ident("doc") && list.tokens.to_string() == "hidden",
        _ => false,
    });
    !hidden && !conditions(attributes).any(|text| text.contains("unstable"))
}

/// The first sentence of documentation, links as their text.
fn first_sentence(attributes: &[Attribute]) -> String {
    let lines: Vec<String> = attributes
        .iter()
        .filter_map(|attribute| match &attribute.meta {
            Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
                Expr::Lit(ExprLit {
                    lit: Lit::Str(line),
                    ..
                }) => Some(line.value()),
                _ => None,
            },
            _ => None,
        })
        .collect();
    sentence_of(lines.iter().map(String::as_str))
}

fn sentence_of<'l>(lines: impl Iterator<Item = &'l str>) -> String {
    let lines = lines.map(str::trim).skip_while(|line| line.is_empty());
    let paragraph: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    let text = without_links(&paragraph.join(" "));
    let end = text.find(". ").unwrap_or(text.len());
    text[..end].trim_end_matches('.').replace('|', "\\|")
}

/// `[text](target)` and `[text]` as `text`.
fn without_links(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        let Some((name, behind)) = link.split_once(']') else {
            break;
        };
        let target = behind
            .strip_prefix('(')
            .and_then(|target| target.split_once(')'));
        // Shapes are in brackets, too, and none of their parts is a link.
        let is_link = name.starts_with('`') || target.is_some();
        match is_link {
            true => out += &format!("{before}{name}"),
            false => out += &format!("{before}[{name}]"),
        }
        rest = target.map_or(behind, |(_, behind)| behind);
    }
    out + rest
}

/// The names that a `use` brings, each with its path.
fn leaves(tree: &UseTree, path: &[String], to: &mut Vec<(Vec<String>, String)>) {
    match tree {
        UseTree::Path(part) => {
            let mut path = path.to_vec();
            path.push(part.ident.to_string());
            leaves(&part.tree, &path, to);
        }
        UseTree::Name(name) => to.push((path.to_vec(), name.ident.to_string())),
        UseTree::Group(group) => group.items.iter().for_each(|tree| leaves(tree, path, to)),
        UseTree::Rename(_) | UseTree::Glob(_) => panic!("a re-export that hides a name"),
    }
}

/// The item that a re-export names, wherever it is defined.
fn resolve(from: &Module, path: &[String], name: &str) -> Entry {
    let root;
    let (mut module, path) = match path {
        [first, rest @ ..] if first == "crate" => {
            root = Module::root();
            (&root, rest)
        }
        // Another package of this repository.
        [first, rest @ ..] if first.starts_with("nvfp4_gemv_") => {
            let folder = first.trim_start_matches("nvfp4_gemv_");
            root = Module::in_package(&format!("crates/{folder}"));
            if let Some(found) = reexported(&root, name) {
                return found;
            }
            (&root, rest)
        }
        _ => (from, path),
    };
    let mut owned;
    for part in path {
        owned = module.child(part);
        module = &owned;
        if let Some(found) = reexported(module, name) {
            return found;
        }
    }
    let found = module.find(name);
    found.unwrap_or_else(|| panic!("{name} is re-exported, and defined nowhere"))
}

fn reexported(module: &Module, name: &str) -> Option<Entry> {
    module.items.iter().find_map(|item| {
        let Item::Use(it) = item else { return None };
        if !matches!(it.vis, Visibility::Public(_)) {
            return None;
        }
        let mut names = Vec::new();
        leaves(&it.tree, &[], &mut names);
        let (path, _) = names.into_iter().find(|(_, of)| of == name)?;
        Some(resolve(module, &path, name))
    })
}

/// The public types that the call of a macro defines.
fn defined_by(it: &ItemMacro) -> Vec<String> {
    let name = it.mac.path.segments.last().expect("a name");
    match name.ident.to_string().as_str() {
        "kernels" => ["Kernel", "Config"].map(String::from).to_vec(),
        // Documentation, the type's name, and its values.
        "named" => {
            let tokens = it.mac.tokens.clone().into_iter();
            let name = tokens.into_iter().find_map(|token| match token {
                TokenTree::Ident(ident) => Some(ident.to_string()),
                _ => None,
            });
            name.into_iter().collect()
        }
        other => panic!("{other}!: what does it define?"),
    }
}

/// Adds the public modules below a module, and itself, to the pages by path.
fn collect(module: &Module, path: &str, needs: &str, to: &mut Vec<(String, String, Entries)>) {
    let mut entries = Entries::new();
    let mut below = Vec::new();
    for item in &module.items {
        if let Item::Macro(it) = item
            && it.ident.is_none()
        {
            for name in defined_by(it) {
                let entry = module.find(&name).expect("a macro says what it defines");
                entries.insert(name, entry);
            }
            continue;
        }
        let Some((kind, attributes, Visibility::Public(_), name)) = parts(item) else {
            continue;
        };
        if !is_shown(attributes) {
            continue;
        }
        match item {
            Item::Mod(it) => below.push((it.ident.to_string(), feature(&it.attrs))),
            Item::Use(it) => {
                let mut names = Vec::new();
                leaves(&it.tree, &[], &mut names);
                for (from, name) in names {
                    let entry = match from[..] {
                        [] => Entry {
                            kind: "crate",
                            feature: None,
                            says: format!("The crate `{name}`, whose types calls take"),
                        },
                        _ => resolve(module, &from, &name),
                    };
                    let feature = feature(&it.attrs).or(entry.feature);
                    entries.insert(name, Entry { feature, ..entry });
                }
            }
            _ => {
                let name = name.expect("all but a re-export have one");
                entries.insert(name, entry(kind, attributes));
            }
        }
    }
    let says = format!("{}.{needs}", first_sentence(&module.attributes));
    to.push((path.to_string(), says, entries));
    for (name, feature) in below {
        let needs = feature.map_or(needs.to_string(), |name| format!(" Feature `{name}`."));
        collect(&module.child(&name), &format!("{path}::{name}"), &needs, to);
    }
}

/// The public modules of the library, and of the package for several GPUs.
fn modules() -> Vec<(String, String, Entries)> {
    let mut modules = Vec::new();
    collect(&Module::root(), "nvfp4_gemv", "", &mut modules);
    let parallel = Module::in_package("crates/parallel");
    collect(&parallel, "nvfp4_gemv_parallel", "", &mut modules);
    modules
}

fn page() -> String {
    let modules = modules();
    let mut page = String::from(
        "# The public API\n\n\
         Every public item of `nvfp4-gemv` and `nvfp4-gemv-parallel`, with the first sentence of its documentation.\n\
         Methods are in `cargo doc`. Items that need feature `unstable`, for which no promise is made, are left out.\n\
         `tests/api.rs` makes this page of the sources, and fails where the two differ.\n",
    );
    for (path, says, entries) in modules {
        let _ = write!(page, "\n## `{path}`\n\n{says}\n");
        if entries.is_empty() {
            continue;
        }
        page += "\n| item | kind | feature | |\n|---|---|---|---|\n";
        for (name, entry) in entries {
            let feature = entry
                .feature
                .map_or(String::new(), |name| format!("`{name}`"));
            let _ = writeln!(
                page,
                "| `{name}` | {} | {feature} | {} |",
                entry.kind, entry.says
            );
        }
    }
    page
}

#[test]
fn the_page_lists_the_public_items() {
    let page = page();
    if let Some(folder) = std::env::var_os("NVFP4_GEMV_API") {
        fs::write(Path::new(&folder).join("api.md"), page).expect("a page");
        return;
    }
    let differs = page
        .lines()
        .zip(PAGE.lines())
        .find(|(now, then)| now != then);
    assert!(
        page == PAGE,
        "docs/api.md is not what the sources say: {differs:?}; NVFP4_GEMV_API=docs cargo test --test api"
    );
}

#[test]
fn every_item_says_what_it_is() {
    let silent: Vec<String> = modules()
        .iter()
        .flat_map(|(path, _, entries)| {
            let silent = entries.iter().filter(|(_, entry)| entry.says.is_empty());
            silent.map(move |(name, _)| format!("{path}::{name}"))
        })
        .collect();
    assert!(silent.is_empty(), "without documentation: {silent:?}");
}
