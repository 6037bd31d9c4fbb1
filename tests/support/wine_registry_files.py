"""Registry files of Wine."""

# The format of Wine 10, with every form of key, option and value.
SYSTEM = rb"""WINE REGISTRY Version 2
;; All keys relative to REGISTRY\\Machine

#arch=win64

[Control Panel\\International\\\xd83c\xdf0e\xd83c\xdf0f\xd83c\xdf0d] 1794777049
#time=1dd7545ca57ee00
"Currencies"="USD"

[Software\\Microsoft\\Windows NT\\CurrentVersion] 1794777053
#time=1dd7545ccb5aaf2
"CurrentBuild"="19043"
"CurrentBuildNumber"="19043"
"CurrentMajorVersionNumber"=dword:0000000a
"CurrentMinorVersionNumber"=dword:00000000
"CurrentVersion"="6.3"
"DigitalProductId"=hex:00,00,00,00,00,00,00,00,00,00,00,00,00,00,00,00,00,00,\
  01,02,03,04,05,06,07,08,09,0a,0b,0c,0d,0e,0f,10,11,12,13,14,15,16,17,18,19,\
  ff
"EditionId"="Professional"
"InstallationType"="Client"
"ProductName"="Windows 10 Pro"

[Software\\Odd\\with \[brackets\]] 1794777053
#time=1dd7545ccb5aaf2
#class="shown \"once\""
@="the default"
"\xe9t\xe9 \"a\\b\""=str(2):"%SystemRoot%\\system32"
"caf\x00e9e"="tab\tline\nend\x20ac"
"list"=str(7):"one\0two\0003\0"
"empty"=""
"bytes"=hex:
"large"=hex(b):01,00,00,00,00,00,00,80
"unterminated"=hex(1):41,00,42
"odd type"=hex(ffff0012):41,00
;a line that is no value

[System\\ControlSet001\\Control\\ProductOptions] 1794777053
#time=1dd7545ccb4e298
"ProductType"="WinNT"

[System\\CurrentControlSet] 1794777049
#time=1dd7545ca54890e
#link
"SymbolicLinkValue"=hex(6):5c,00,52,00,65,00,67,00,69,00,73,00,74,00,72,00,79,\
  00,5c,00,4d,00,61,00,63,00,68,00,69,00,6e,00,65,00,5c,00,53,00,79,00,73,00,\
  74,00,65,00,6d,00,5c,00,43,00,6f,00,6e,00,74,00,72,00,6f,00,6c,00,53,00,65,\
  00,74,00,30,00,30,00,31,00
"""
USER = rb"""WINE REGISTRY Version 2
;; All keys relative to REGISTRY\\User\\S-1-5-21-0-0-0-1000

#arch=win64

[Software\\Wine] 1794777053
"Version"="win7"
"Keep"="this"
"""
EMPTY = b"WINE REGISTRY Version 2\n;; All keys relative to REGISTRY\\\\User\\\\.Default\n"
VERSION = r"Software\Microsoft\Windows NT\CurrentVersion"
