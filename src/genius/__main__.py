from genius.cli import main

main()
