"$1" 2>/dev/null
[ $? -eq 2 ]
