"""The runner as an executable: for which platforms it is built, from what, with which compiler, and where it is found.

    platforms.py    the platforms, and which one a machine is
    sources.py      the C files in native/ and their hash
    compilers.py    zig, gcc and the NDK: found or not, and their command lines
    android.py      the names of Android's libraries that the runner calls
    build.py        sources + compiler → executable
    find.py         the executable for a platform: prebuilt, from the cache, or built now

Nothing here starts a runner; that is what targets/ does.
"""
