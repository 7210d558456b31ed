# Copies of the tree with patches that the tree itself must not have; for scripts/mistakes and scripts/comparisons.
# The script that reads this sets `patches` (a directory) and `copy`, and stands in the repository.

make_copy() {
    rm -rf "$copy"
    mkdir -p "$copy"
    git ls-files -z --cached --others --exclude-standard | tar --create --null --files-from=- --ignore-failed-read 2>/dev/null |
        tar --extract --directory="$copy"
    local failed=
    while IFS= read -r patch; do
        if git apply --directory="$copy" "$patch"; then
            # Unchanged sources keep their times, so that nothing is built twice.
            local file
            file=$(sed -n '2s|^+++ b/||p' "$patch")
            touch --reference="$patch" "$copy/$file"
            [ "$patch" -nt "$file" ] || touch --reference="$file" "$copy/$file"
            continue
        fi
        failed=yes
        git apply --directory="$copy" --reject "$patch" 2>/dev/null || true
        echo "$patch does not apply any more." >&2
    done < <(find "$patches" -name '*.patch' | sort)
    if [ -n "$failed" ]; then
        echo "The source below these patches has changed. Make their changes by hand in $copy (what did not apply is in" >&2
        echo "files *.rej there), then run: $0 keep" >&2
        exit 1
    fi
}

keep() {
    [ -d "$copy" ] || { echo "there is no copy yet: run $0 first" >&2; exit 1; }
    mkdir -p "$patches"
    find "$patches" -name '*.patch' -delete
    while IFS= read -r source; do
        [ -f "$copy/$source" ] && ! cmp -s "$source" "$copy/$source" || continue
        # crates/quire/src/file/backing.rs: file/backing.patch in the directory quire
        local patch=${source#crates/}
        patch=$patches/${patch/\/src\//\/}
        patch=${patch%.rs}.patch
        mkdir -p "$(dirname "$patch")"
        diff --unified --label "a/$source" --label "b/$source" "$source" "$copy/$source" >"$patch" || true
        echo "$patch"
    done < <(git ls-files 'crates/*/src/*.rs' 'crates/*/tests/*.rs')
}

explain() { # the comment that the script begins with
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
