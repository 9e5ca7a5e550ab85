//! Resolves the paths in a source file to modules of the crate: `use` trees, paths in code, `super`, re-exports.

use std::collections::BTreeMap;

/// A path from the root of the crate, such as `["model", "JobId"]`.
pub(crate) type CratePath = Vec<String>;

/// Paths in the crate that a file names.
#[derive(Debug, Default)]
pub(crate) struct Imports {
    /// All paths.
    pub(crate) named: Vec<CratePath>,
    /// Names that the file re-exports, with their original paths.
    pub(crate) exported: Vec<(CratePath, CratePath)>,
}

/// A token of code. Comments, literals and test-only code are skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Sign(char),
    /// `::`
    Path,
}

/// Returns the imports of a file whose module is `module`.
pub(crate) fn of(module: &[&str], text: &str) -> Imports {
    let tokens = without_tests(&tokens(text));
    let mut imports = Imports::default();
    let mut modules: Vec<(String, usize)> = module.iter().map(|name| ((*name).to_owned(), 0)).collect();
    let mut depth = 0;
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let here: CratePath = modules.iter().map(|(name, _)| name.clone()).collect();
        match token {
            Token::Sign('{') => depth += 1,
            Token::Sign('}') => {
                if modules.len() > module.len() && modules.last().is_some_and(|(_, opened)| *opened == depth)
                {
                    modules.pop();
                }
                depth -= 1;
            }
            Token::Word(word) if word == "mod" => {
                if let (Some(Token::Word(name)), Some(Token::Sign('{'))) =
                    (tokens.get(at + 1), tokens.get(at + 2))
                {
                    modules.push((name.clone(), depth + 1));
                    at += 1;
                }
            }
            Token::Word(word) if word == "use" => {
                let is_public = is_public(&tokens, at);
                let mut found = Vec::new();
                at = tree(&tokens, at + 1, &mut Vec::new(), &mut found);
                for (path, name) in found {
                    let Some(path) = resolve(&here, &path) else { continue };
                    if is_public && let Some(name) = name {
                        imports.exported.push(([here.clone(), vec![name]].concat(), path.clone()));
                    }
                    imports.named.push(path);
                }
                continue;
            }
            Token::Word(word) if ["crate", "super", "self"].contains(&word.as_str()) => {
                let mut path = vec![word.clone()];
                while let (Some(Token::Path), Some(Token::Word(next))) =
                    (tokens.get(at + 1), tokens.get(at + 2))
                {
                    path.push(next.clone());
                    at += 2;
                }
                imports.named.extend(resolve(&here, &path).filter(|_| path.len() > 1));
            }
            _ => {}
        }
        at += 1;
    }
    imports
}

/// Resolves a path through all re-exports.
pub(crate) fn origin(path: &[String], exported: &BTreeMap<CratePath, CratePath>) -> CratePath {
    let mut path = path.to_vec();
    for _ in 0..16 {
        let known =
            (1..=path.len()).find_map(|length| exported.get(&path[..length]).map(|target| (length, target)));
        let Some((length, target)) = known else { break };
        path = [target.clone(), path[length..].to_vec()].concat();
    }
    path
}

/// True if `pub` or `pub(…)` stands before the token.
fn is_public(tokens: &[Token], at: usize) -> bool {
    let before = &tokens[..at];
    let before = if before.last() == Some(&Token::Sign(')')) {
        before.iter().rposition(|token| *token == Token::Sign('(')).map_or(before, |open| &before[..open])
    } else {
        before
    };
    before.last() == Some(&Token::Word("pub".to_owned()))
}

/// Reads a `use` tree. Each path comes with its name in this file. Returns the position behind the tree.
fn tree(
    tokens: &[Token],
    mut at: usize,
    prefix: &mut Vec<String>,
    found: &mut Vec<(Vec<String>, Option<String>)>,
) -> usize {
    let length = prefix.len();
    loop {
        match tokens.get(at) {
            Some(Token::Word(word)) if word == "as" => {
                if let (Some(Token::Word(name)), Some((_, given))) = (tokens.get(at + 1), found.last_mut()) {
                    *given = Some(name.clone());
                }
                at += 2;
                continue;
            }
            Some(Token::Word(word)) => {
                prefix.push(word.clone());
                if tokens.get(at + 1) != Some(&Token::Path) {
                    let is_self = word == "self" && prefix.len() > 1;
                    let path = if is_self { prefix[..prefix.len() - 1].to_vec() } else { prefix.clone() };
                    let name = path.last().cloned();
                    found.push((path, name));
                }
            }
            Some(Token::Sign('*')) => found.push((prefix.clone(), None)),
            Some(Token::Sign('{')) => {
                at = tree(tokens, at + 1, &mut prefix.clone(), found);
                continue;
            }
            Some(Token::Sign(',')) => prefix.truncate(length),
            Some(Token::Path) => {}
            Some(Token::Sign('}')) => return at + 1,
            _ => return at,
        }
        at += 1;
    }
}

/// Resolves a path to one in the crate. Returns `None` for other crates and for imported names.
fn resolve(here: &[String], path: &[String]) -> Option<CratePath> {
    let (mut base, mut rest) = match path.first()?.as_str() {
        "crate" => (Vec::new(), &path[1..]),
        "self" => (here.to_vec(), &path[1..]),
        "super" => (here.to_vec(), path),
        _ => return None,
    };
    while rest.first().is_some_and(|name| name == "super") {
        base.pop();
        rest = &rest[1..];
    }
    Some([base, rest.to_vec()].concat())
}

/// Drops items behind `#[cfg(test)]`.
fn without_tests(tokens: &[Token]) -> Vec<Token> {
    let word = |text: &str| Token::Word(text.to_owned());
    let marker = [
        Token::Sign('#'),
        Token::Sign('['),
        word("cfg"),
        Token::Sign('('),
        word("test"),
        Token::Sign(')'),
        Token::Sign(']'),
    ];
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if !tokens[at..].starts_with(&marker) {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        at += marker.len();
        let mut depth = 0_usize;
        while at < tokens.len() {
            match tokens[at] {
                Token::Sign('{' | '(' | '[') => depth += 1,
                Token::Sign('}' | ')' | ']') => depth = depth.saturating_sub(1),
                _ => {}
            }
            at += 1;
            if depth == 0 && matches!(tokens[at - 1], Token::Sign(';' | '}')) {
                break;
            }
        }
    }
    kept
}

fn tokens(text: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if let Some(line) = rest.strip_prefix("//") {
            rest = line.split_once('\n').map_or("", |(_, rest)| rest);
        } else if rest.starts_with("/*") {
            rest = after_comment(rest);
        } else if let Some(raw) = raw_text(rest) {
            rest = raw;
        } else if first == '"' {
            rest = after_quote(from(rest, 1), '"');
        } else if first == '\'' {
            rest = after_character(from(rest, 1));
        } else if first.is_alphanumeric() || first == '_' {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            found.push(Token::Word(word.to_owned()));
            rest = after;
        } else if let Some(after) = rest.strip_prefix("::") {
            found.push(Token::Path);
            rest = after;
        } else {
            if !first.is_whitespace() {
                found.push(Token::Sign(first));
            }
            rest = from(rest, first.len_utf8());
        }
    }
    found
}

/// Returns the text from byte `at` on.
fn from(text: &str, at: usize) -> &str {
    text.get(at..).unwrap()
}

fn after_comment(text: &str) -> &str {
    let (mut open, mut rest) = (0, text);
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix("/*") {
            (open, rest) = (open + 1, after);
        } else if let Some(after) = rest.strip_prefix("*/") {
            (open, rest) = (open - 1, after);
            if open == 0 {
                return rest;
            }
        } else {
            rest = from(rest, rest.chars().next().unwrap().len_utf8());
        }
    }
    rest
}

/// Returns the source behind a raw text, if one begins here.
fn raw_text(text: &str) -> Option<&str> {
    let start = text.strip_prefix('b').unwrap_or(text).strip_prefix('r')?;
    let hashes = start.len() - start.trim_start_matches('#').len();
    let content = from(start, hashes).strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(content.split_once(&end).map_or("", |(_, rest)| rest))
}

fn after_quote(text: &str, quote: char) -> &str {
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        if character == '\\' {
            characters.next();
        } else if character == quote {
            return from(text, at + 1);
        }
    }
    ""
}

/// Returns the source behind a character, or behind the tick of a lifetime.
fn after_character(text: &str) -> &str {
    let mut characters = text.chars();
    match (characters.next(), characters.next()) {
        (Some('\\'), _) => after_quote(text, '\''),
        (Some(one), Some('\'')) => from(text, one.len_utf8() + 1),
        _ => text,
    }
}
