# compile.sh SOURCE: a compiler that finds a mistake. All it says goes to one pipe, as two pipes have no order.
echo "compiling $1" >&2
echo "$1:7: undefined name 'frob'" >&2
exit 3
