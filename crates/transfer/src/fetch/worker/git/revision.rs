//! Resolves a revision on a remote: tag, branch, commit hash, prefix of one, in this order (language.md §7.3).

use gix::ObjectId;
use gix::hash::Prefix;
use gix::protocol::handshake::Ref;

/// Fewest digits of a commit hash's prefix: as many as Git prints for a small repository.
const MIN_DIGITS: usize = 7;

/// Beginning of the full name of every reference but `HEAD`.
const FULL_NAME: &str = "refs/";

/// A revision as written, sorted by what it can mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Revision {
    /// A full commit hash. It never means a tag or branch of this name: a pinned commit must be that commit.
    Commit(ObjectId),
    /// A reference by its full name, such as `refs/heads/main`.
    Reference(String),
    /// A tag or branch, or else a prefix of a commit hash.
    Name(String, Option<Prefix>),
}

/// Meaning of a revision according to a remote's references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RevisionMeaning {
    /// This commit.
    Commit(ObjectId),
    /// No reference matches, but it may be the hash prefix of a commit. The whole history must be searched, even if a
    /// reference names such a commit: whoever may push can make another one whose hash begins alike.
    Search(Prefix),
    /// Nothing.
    Unknown,
}

impl Revision {
    /// Parses a revision; `None` if it cannot be one.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_hex && let Ok(id) = ObjectId::from_hex(text.to_ascii_lowercase().as_bytes()) {
            return Some(Self::Commit(id));
        }
        if text.starts_with('-') || gix::validate::reference::name_partial(text.into()).is_err() {
            return None;
        }
        if text.starts_with(FULL_NAME) {
            return Some(Self::Reference(text.to_owned()));
        }
        let prefix = if is_hex && text.len() >= MIN_DIGITS { Prefix::from_hex(text).ok() } else { None };
        Some(Self::Name(text.to_owned(), prefix))
    }

    /// Returns name prefixes of the references that are needed to resolve it.
    pub(super) fn wanted_references(&self) -> Vec<String> {
        match self {
            Self::Commit(_) => Vec::new(),
            Self::Reference(name) => vec![name.clone()],
            Self::Name(_, Some(_)) => ["refs/tags/", "refs/heads/"].map(str::to_owned).into(),
            Self::Name(name, None) => {
                let mut wanted = vec![format!("refs/tags/{name}"), format!("refs/heads/{name}")];
                wanted.extend((name == "HEAD").then(|| name.clone()));
                wanted
            }
        }
    }

    /// Resolves the revision among `references`. `HEAD` is the remote's default branch, unless a tag or branch has that
    /// name.
    pub(super) fn meaning(&self, references: &[Ref]) -> RevisionMeaning {
        let (names, prefix) = match self {
            Self::Commit(id) => return RevisionMeaning::Commit(*id),
            Self::Reference(name) => (vec![name.clone()], None),
            Self::Name(name, prefix) => {
                let mut names = vec![format!("refs/tags/{name}"), format!("refs/heads/{name}")];
                names.extend((name == "HEAD").then(|| name.clone()));
                (names, *prefix)
            }
        };
        for wanted in names {
            if let Some((_, id)) = tips(references).find(|(name, _)| *name == wanted.as_bytes()) {
                return RevisionMeaning::Commit(id);
            }
        }
        prefix.map_or(RevisionMeaning::Unknown, RevisionMeaning::Search)
    }
}

/// Returns full names of references with their objects. Tags are followed.
pub(super) fn tips(references: &[Ref]) -> impl Iterator<Item = (&[u8], ObjectId)> {
    references.iter().filter_map(|reference| {
        let (name, id, followed) = reference.unpack();
        Some((name.as_ref(), followed.or(id)?.to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> ObjectId {
        ObjectId::from_hex(format!("{text:0<40}").as_bytes()).unwrap()
    }

    fn direct(name: &str, object: &str) -> Ref {
        Ref::Direct { full_ref_name: name.into(), object: id(object) }
    }

    fn meaning(text: &str) -> RevisionMeaning {
        let references = [
            Ref::Symbolic {
                full_ref_name: "HEAD".into(),
                target: "refs/heads/main".into(),
                tag: None,
                object: id("a1"),
            },
            direct("refs/heads/main", "a1"),
            direct("refs/heads/v1", "b2"),
            direct("refs/heads/deadbeef", "c3"),
            direct("refs/heads/one", "0123456789ab"),
            direct("refs/heads/two", "0123456789cd"),
            direct("refs/tags/main-1", "e5"),
            direct("refs/tags/same", "0123456789ab"),
            Ref::Peeled { full_ref_name: "refs/tags/v1".into(), tag: id("f6"), object: id("d4") },
        ];
        Revision::parse(text).map_or(RevisionMeaning::Unknown, |revision| revision.meaning(&references))
    }

    #[test]
    fn tags_come_before_branches_and_branches_before_hashes() {
        assert_eq!(meaning("v1"), RevisionMeaning::Commit(id("d4")));
        assert_eq!(meaning("main"), RevisionMeaning::Commit(id("a1")));
        assert_eq!(meaning("HEAD"), RevisionMeaning::Commit(id("a1")));
        assert_eq!(meaning("deadbeef"), RevisionMeaning::Commit(id("c3")));
        assert_eq!(meaning("mai"), RevisionMeaning::Unknown);
    }

    #[test]
    fn a_full_name_means_this_reference_alone() {
        assert_eq!(meaning("refs/heads/v1"), RevisionMeaning::Commit(id("b2")));
        assert_eq!(meaning("refs/tags/v1"), RevisionMeaning::Commit(id("d4")));
        assert_eq!(meaning("refs/heads/deadbeef"), RevisionMeaning::Commit(id("c3")));
        for text in ["refs/tags/main", "refs/heads/0123456", "refs/heads", "heads/main", "refs/main"] {
            assert_eq!(meaning(text), RevisionMeaning::Unknown, "{text}");
        }
        assert_eq!(Revision::parse("refs/heads/v1").unwrap().wanted_references(), ["refs/heads/v1"]);
    }

    #[test]
    fn a_hash_needs_all_or_at_least_seven_digits() {
        let full = id("0123456789ab").to_string();
        assert_eq!(meaning(&full), RevisionMeaning::Commit(id("0123456789ab")));
        assert_eq!(meaning(&full.to_uppercase()), RevisionMeaning::Commit(id("0123456789ab")));
        for searched in ["0123456789A", "01234567", "0123456", "7654321"] {
            assert!(matches!(meaning(searched), RevisionMeaning::Search(_)), "{searched}");
        }
        assert_eq!(meaning("012345"), RevisionMeaning::Unknown);
    }

    #[test]
    fn a_branch_that_is_called_like_a_full_hash_does_not_stand_for_it() {
        let full = id("a1").to_string();
        let references = [direct(&format!("refs/heads/{full}"), "b2")];
        assert_eq!(Revision::parse(&full).unwrap().meaning(&references), RevisionMeaning::Commit(id("a1")));
    }

    #[test]
    fn fault_68_what_can_be_no_reference_is_no_revision() {
        for text in
            ["", "-v1", "--all", "a b", "a\nref-prefix x", "a\0", "a..b", "v1^{commit}", "main~1", "@{-1}"]
        {
            assert_eq!(Revision::parse(text), None, "{text:?}");
        }
    }
}
