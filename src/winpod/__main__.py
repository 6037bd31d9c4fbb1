from winpod.cli.main import main

main()
