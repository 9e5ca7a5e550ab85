# slug TEXT: TEXT as part of a file name or URL.
slug() {
    printf '%s\n' "$1" | tr '[:upper:]' '[:lower:]' | tr -cs '[:alnum:]\n' '-' | sed 's/^-//; s/-$//'
}
