case $("$1" --version) in 'slug '?*) exit 0 ;; *) exit 1 ;; esac
