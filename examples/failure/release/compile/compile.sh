# compile.sh SOURCE: a compiler that finds a mistake.
echo "compiling $1"
echo "$1:7: undefined name 'frob'" >&2
exit 3
