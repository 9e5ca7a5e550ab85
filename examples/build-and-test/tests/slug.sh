[ "$("$1" 'Hello, World!')" = hello-world ] && [ "$("$1" '  a  b  ')" = a-b ]
