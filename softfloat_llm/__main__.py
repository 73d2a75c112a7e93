"""python -m softfloat_llm"""

from softfloat_llm.cli.main import main

if __name__ == "__main__":
    main()
