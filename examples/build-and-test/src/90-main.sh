case ${1-} in
    --version) echo "slug $VERSION" ;;
    '') echo "usage: slug TEXT" >&2; exit 2 ;;
    *) slug "$1" ;;
esac
